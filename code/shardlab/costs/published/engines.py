"""What was published of trainers and generators: hand-overs, decoding, memory, and steps."""

from dataclasses import dataclass

from shardlab.files.arguments import Count, Positive, checked
from shardlab.sharding.layout import Layout

from ..facts import hardware, mixtures, models, nodes
from ..generation.decode import DecodingRank
from ..generation.engines import TwoEngines
from ..generation.hand_over import HandOver
from ..generation.loop import EngineLoop
from ..training import Training
from .rows import rows


@dataclass(frozen=True, kw_only=True)
@checked
class HandedOver:
    """A hand-over that was timed, and the rate of a card, or of the link in a node."""

    name: str
    hand_over: HandOver
    rate: Positive  # bytes/s as sold, in one direction
    seconds: Positive
    source: str

    @property
    def bound(self) -> float:
        """Seconds of the busiest card at the rate as sold, a lower bound."""
        return self.hand_over.busiest / self.rate

    @property
    def reached(self) -> float:
        """Bytes/s that reached a rank of the generator."""
        return self.hand_over.arrives / self.seconds


@dataclass(frozen=True, kw_only=True)
@checked
class TokenCache:
    """What a generator keeps of one token."""

    model: str
    bytes: Count
    source: str


@dataclass(frozen=True, kw_only=True)
@checked
class Decoded:
    """Tokens that a GPU wrote in a second, for texts of one length that never ran out."""

    model: str
    chip: str
    tp: Count
    element: Count  # bytes of a weight, and of a number in the cache
    prompt: Count
    answer: Count
    tokens_per_second: Positive
    source: str

    @property
    def bound(self) -> float:
        """Tokens/s of a GPU at most."""
        rank = DecodingRank(
            spec=models.published(self.model).spec,
            chip=hardware.chip(self.chip),
            layout=Layout(tp=self.tp),
            element=self.element,
            cache_element=self.element,
            link=hardware.link("NVLink 4").reached,
        )
        return rank.tokens_per_second(self.prompt, self.answer)


@dataclass(frozen=True, kw_only=True)
@checked
class Woken:
    """Bytes on a GPU in one of the moments in which a generator wakes beside a trainer."""

    moment: str  # of `SharedGPU.moments`, or "at once"
    held: Positive
    source: str


@dataclass(frozen=True, kw_only=True)
@checked
class TwoPlacements:
    """A step of the same training on the same GPUs in turn, and apart, one step off."""

    name: str
    loop: EngineLoop
    generators: Count  # where apart
    same: Positive  # seconds
    apart: Positive
    source: str


@dataclass(frozen=True, kw_only=True)
@checked
class EngineStep:
    """A step on DGX H100s, of which the mean length of the texts is known, and not their spread."""

    model: str
    nodes: Count
    texts: Count
    prompt: Count  # tokens
    answer: Count
    trainer: Layout
    copy: Layout
    in_turn: Positive  # seconds
    apart: Positive | None = None
    source: str

    @property
    def bound(self) -> dict[str, float]:
        """Seconds of `TwoEngines.step` in turn if all texts are equally long: the least."""
        spec = mixtures.spec_of(self.model)
        return TwoEngines(
            training=Training(spec=spec, layout=self.trainer, recomputation="full"),
            copy=self.copy,
            cluster=nodes.cluster("DGX H100", self.nodes),
            prompt=self.prompt,
            lengths=[self.answer] * self.texts,
        ).step()


HAND_OVERS = rows("hand_overs", HandedOver)
TOKEN_CACHES = rows("token_caches", TokenCache)
DECODED = rows("decoding", Decoded)
WOKEN = rows("woken", Woken)
PLACEMENTS = rows("placements", TwoPlacements)
ENGINE_STEPS = rows("engine_steps", EngineStep)
