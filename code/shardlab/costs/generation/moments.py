"""Memory of a GPU that trains and generates in turn, in seven moments of a step.

The weights are there twice while they are handed over, so the cache must wake after the trainer's
have gone. Source: https://github.com/sgl-project/sglang/issues/7009, which measured both orders.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shardlab.files.arguments import Positive, checked


@dataclass(frozen=True, kw_only=True)
@checked
class SharedGPU:
    """What both engines need on one GPU, in bytes."""

    trainer: Mapping[str, float]  # by part, such as `memory.per_rank`; "parameters" stay longest
    weights: Positive  # the generator's, on this GPU
    cache: Positive
    gathered: float = 0.0  # weights that the trainer gathers for the hand-over, beside its own
    working: float = 0.0  # the generator's activations, and the logits
    beside: float = 0.0  # contexts and graphs of both, which never leave

    def moments(self) -> dict[str, dict[str, float]]:
        """List what is there in each moment, by part."""
        always = {"beside": self.beside}
        own = {**always, "parameters": self.trainer.get("parameters", 0.0)}
        both = {**own, "weights": self.weights}
        generator = {**always, "weights": self.weights}
        return {
            "train": {**always, **self.trainer},
            "offload the states": own,
            "wake the weights": both,
            "hand over": {**both, "gathered": self.gathered},
            "drop the trainer's weights": generator,
            "wake the cache": {**generator, "cache": self.cache},
            "generate": {**generator, "cache": self.cache, "working": self.working},
        }

    @property
    def peak(self) -> float:
        """Bytes in the fullest moment."""
        return max(sum(held.values()) for held in self.moments().values())

    @property
    def peak_at_once(self) -> float:
        """Bytes in the fullest moment if the cache wakes with the weights, before the hand-over."""
        return max(self.peak, sum(self.moments()["hand over"].values()) + self.cache)
