"""Swapping: a model too large for its chip lives in the host's memory, and every byte crosses PCIe in every step.

ZeRO-Offload (Ren et al. 2021, https://arxiv.org/abs/2101.06840) and ZeRO-Infinity (Rajbhandari et al. 2021, section 4,
https://arxiv.org/abs/2104.07857). Layer after layer, the parameters come in for forward and again for backward;
gradients go out, and are added up in the host's memory. The optimizer updates on the host, or its states come in and go
back too. PCIe carries both directions at once, and transfers may hide behind arithmetic: times are lower bounds.
"""

from dataclasses import dataclass

from ..facts.hardware import LINK_UTILISATION, Chip, Link
from ..facts.recipes import MIXED, Recipe

UPDATES = ("host", "chip")


@dataclass(frozen=True, kw_only=True)
class Swap:
    """One training step whose states all live in the host's memory."""

    num_parameters: float
    tokens: float  # of one microbatch: what is computed each time the parameters come in
    chip: Chip
    link: Link  # to the host's memory, for instance `hardware.host_link(chip)`
    num_microbatches: int = 1
    loads: int = 2  # times the parameters come in for a microbatch; 3 where backward computes forward again
    update: str = "host"  # who updates the parameters
    recipe: Recipe = MIXED
    utilisation: float = 0.4  # of the chip's peak, while it computes
    link_utilisation: float = LINK_UTILISATION  # of the link's rate, while it transfers

    def __post_init__(self) -> None:
        if self.num_parameters <= 0 or self.tokens <= 0 or self.num_microbatches < 1 or self.loads < 1:
            raise ValueError(
                f"{self.num_parameters:g} parameters, loaded {self.loads} times for each of {self.num_microbatches} "
                f"microbatches of {self.tokens:g} tokens, make no step; use more than 0 of each"
            )
        if self.update not in UPDATES:
            raise ValueError(f"unknown place of the update {self.update!r}; known: {', '.join(UPDATES)}")

    @property
    def to_chip(self) -> dict[str, float]:
        """Bytes from the host's memory, by part."""
        on_chip = self.update == "chip"
        return {
            "parameters": self.recipe.parameters * self.loads * self.num_microbatches * self.num_parameters,
            "gradients": on_chip * self.recipe.gradients * self.num_parameters,
            "optimizer": on_chip * self.recipe.optimizer * self.num_parameters,
        }

    @property
    def to_host(self) -> dict[str, float]:
        """Bytes to the host's memory, by part."""
        on_chip = self.update == "chip"
        return {
            "parameters": on_chip * self.recipe.parameters * self.num_parameters,
            "gradients": self.recipe.gradients * self.num_microbatches * self.num_parameters,
            "optimizer": on_chip * self.recipe.optimizer * self.num_parameters,
        }

    @property
    def transfer(self) -> float:
        """Seconds of a step in which the busier direction of the link is busy."""
        busier = max(sum(self.to_chip.values()), sum(self.to_host.values()))
        return busier / (self.link_utilisation * self.link.bandwidth)

    @property
    def compute(self) -> float:
        """Seconds of a step's arithmetic: 6 FLOPs for each parameter and token, 2 more where forward runs twice."""
        work = (6 + 2 * (self.loads - 2)) * self.num_parameters * self.tokens * self.num_microbatches
        return work / (self.utilisation * self.chip.peak_flops)

    @property
    def seconds(self) -> float:
        """A step, if the shorter of the two hides behind the longer."""
        return max(self.transfer, self.compute)

    @property
    def ratio(self) -> float:
        """Times as long as a chip would need that holds everything."""
        return self.seconds / self.compute

    @property
    def tokens_to_hide(self) -> float:
        """Tokens of a microbatch from which the transfers can hide behind the arithmetic."""
        return self.tokens * self.transfer / self.compute
