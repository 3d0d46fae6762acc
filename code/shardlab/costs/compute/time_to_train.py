"""Time to train: days = 6 N D / (chips * peak * utilisation), its exact form, and its inverse.

Utilisation is a share of the chips' peak. MFU counts model FLOPs; HFU adds what is recomputed
(Chowdhery et al. 2022, section 4.1 and appendix B, https://arxiv.org/abs/2204.02311), so it is
never the lower of the two.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from shardlab.files.arguments import Count, Positive, Share, checked
from shardlab.model.spec import TransformerSpec

from ..facts.hardware import Chip
from ..units import DAY, HOUR
from . import flops

YEAR = 365 * DAY


@dataclass(frozen=True, kw_only=True)
@checked
class TimeToTrain:
    """A model, the text to train it on, and the chips."""

    spec: TransformerSpec
    tokens: Positive  # of text, over the whole training
    chip: Chip
    num_chips: Count = 1
    # MFU. Over the stages of its training Llama 3 405B reached 38 to 43 % (Llama Team 2024, Table
    # 4, https://arxiv.org/abs/2407.21783).
    utilisation: Share = 0.4
    sequence: Count | None = None  # tokens; None: the model's context length
    precision: str | None = None  # None: the chip's training precision
    pairs: str = "full"  # which pairs of tokens count as model FLOPs, see `flops.forward`

    @cached_property
    def flops_per_token(self) -> float:
        """Model FLOPs of a token, averaged over a sequence."""
        length = self.spec.context_length if self.sequence is None else self.sequence
        counted = flops.model_flops(self.spec, batch=1, sequence=length, pairs=self.pairs)
        return counted / length

    @property
    def flops(self) -> float:
        """Model FLOPs of the whole training."""
        return self.flops_per_token * self.tokens

    @property
    def peak(self) -> float:
        """FLOP/s of all chips together."""
        return self.num_chips * self.chip.peak(self.precision or self.chip.precision)

    @property
    def seconds(self) -> float:
        """Duration of the training."""
        return self.flops / (self.peak * self.utilisation)

    @property
    def days(self) -> float:
        """Duration of the training in days."""
        return self.seconds / DAY

    @property
    def chip_hours(self) -> float:
        """Hours of all chips together."""
        return self.num_chips * self.seconds / HOUR

    @property
    def joules(self) -> float:
        """Energy of the chips alone, if every chip always draws its maker's limit.

        Errors: ValueError for a chip whose limit is not published.
        """
        if self.chip.power is None:
            raise ValueError(
                f"the maker of the {self.chip.name} does not print its power; use another chip"
            )
        return self.num_chips * self.seconds * self.chip.power


@dataclass(frozen=True, kw_only=True)
@checked
class Claim:
    """A published estimate of how long GPT-3 would take on one V100."""

    name: str
    years: Positive
    flops: Positive  # as the authors count them
    source: str

    @property
    def rate(self) -> float:
        """FLOP/s that the V100 must reach: the assumption behind the years."""
        return self.flops / (self.years * YEAR)


@checked
def rule_of_thumb_days(
    num_parameters: float, tokens: float, *, num_chips: Count, peak: Positive, utilisation: Share
) -> float:
    """Estimate the days by 6 N D. peak: FLOP/s of one chip; utilisation: MFU."""
    return flops.six_n_d(num_parameters, tokens) / (num_chips * peak * utilisation) / DAY


@checked
def megatron_days(
    num_parameters: float, tokens: float, *, num_chips: Count, rate: Positive
) -> float:
    """Estimate the days by 8 T P / (n X), with every layer's forward computed twice.

    rate: X, hardware FLOP/s that one chip reaches. Source: Narayanan et al. 2021, equation 4
    (https://arxiv.org/abs/2104.04473).
    """
    return 8 * tokens * num_parameters / (num_chips * rate) / DAY


@checked
def chips_needed(training: TimeToTrain, days: Positive) -> int:
    """Count the fewest chips that train in at most `days`, at the same utilisation."""
    alone = replace(training, num_chips=1)
    return int(-(-alone.days // days))


@checked
def utilisation(counted: float, *, seconds: Positive, num_chips: Count, peak: Positive) -> float:
    """Return the share of the peak: MFU for counted model FLOPs, HFU for hardware FLOPs.

    counted: FLOPs of one step, or of several.
    """
    return counted / (seconds * num_chips * peak)


# Time on one V100 for GPT-3's 300 billion tokens. Nobody tried: the weights alone take 350 GB.
ONE_V100: tuple[Claim, ...] = (
    Claim(
        name="Narayanan et al. 2021",
        years=288,
        flops=8 * 175e9 * 300e9,
        source="https://arxiv.org/abs/2104.04473, section 1; they count every layer's forward twice (equation 4)",
    ),
    Claim(
        name="Lambda Labs 2020",
        years=355,
        flops=3.114e23,
        source="https://lambdalabs.com/blog/demystifying-gpt-3; at 28e12 FLOP/s, the peak without tensor cores",
    ),
    Claim(
        name="by OpenAI's rate (Patterson et al. 2021)",
        years=10_000 * 14.8 / 365,
        flops=3.14e23,
        source="Patterson et al. 2021, appendix (https://arxiv.org/abs/2104.10350): OpenAI told a rate, 24.6e12 FLOP/s "
        "for each V100; 14.8 days on 10,000 of them follow from it",
    ),
)
