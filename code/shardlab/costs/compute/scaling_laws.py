"""Scaling laws: how to split a budget of FLOPs between the size of a model and the text it reads.

Kaplan et al. 2020 (https://arxiv.org/abs/2001.08361) spend it on the model; Hoffmann et al. 2022
(https://arxiv.org/abs/2203.15556) on both alike. The budget is C = 6 N D in both.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from shardlab.files.arguments import Positive, checked

from ..units import DAY

PF_DAY = 1e15 * DAY  # FLOPs of one day at 10^15 FLOP/s


@dataclass(frozen=True, kw_only=True)
@checked
class Split:
    """A model's size and the number of tokens it is trained on."""

    parameters: Positive
    tokens: Positive

    @property
    def flops(self) -> float:
        """6 N D."""
        return 6 * self.parameters * self.tokens

    @property
    def tokens_per_parameter(self) -> float:
        """Tokens for each parameter: about 20 by Hoffmann et al."""
        return self.tokens / self.parameters


@dataclass(frozen=True, kw_only=True)
@checked
class PowerLaw:
    """A law by which the best size grows as a power of the budget: N = at_one * C^exponent."""

    at_one: Positive
    exponent: Positive

    def best(self, budget: Positive) -> Split:
        """Split a budget in FLOPs."""
        parameters = self.at_one * budget**self.exponent
        return Split(parameters=parameters, tokens=budget / (6 * parameters))


@dataclass(frozen=True, kw_only=True)
@checked
class Loss:
    """Loss, in nats per token, as a function of size and text: E + A / N^alpha + B / D^beta.

    Hoffmann et al. 2022, equation 2: the entropy of text, what a finite model misses, and what
    finite text does not teach.
    """

    irreducible: Positive  # E
    size: Positive  # A
    size_exponent: Positive  # alpha
    text: Positive  # B
    text_exponent: Positive  # beta
    source: str

    def at(self, split: Split) -> float:
        """Return the nats per token of a split."""
        small = self.size / math.pow(split.parameters, self.size_exponent)
        short = self.text / math.pow(split.tokens, self.text_exponent)
        return self.irreducible + small + short

    def best(self, budget: Positive) -> Split:
        """Find the split with the lowest loss; Hoffmann et al. 2022, equation 4."""
        total = self.size_exponent + self.text_exponent
        balance = self.size_exponent * self.size / (self.text_exponent * self.text)
        share = self.text_exponent / total
        parameters = math.pow(balance, 1 / total) * math.pow(budget / 6, share)
        return Split(parameters=parameters, tokens=budget / (6 * parameters))


def _through(one: tuple[float, float], other: tuple[float, float]) -> PowerLaw:
    """Fit the power law through two points (FLOPs, parameters)."""
    exponent = math.log(other[1] / one[1]) / math.log(other[0] / one[0])
    return PowerLaw(at_one=one[1] / one[0] ** exponent, exponent=exponent)


# Hoffmann et al. print the exponents of their approaches 1 and 2 (0.50 and 0.49, Table 2) but no
# coefficient. These laws go through the smallest and the largest model of their Tables 3 and A3.
TRAINING_CURVES = _through((1.92e19, 400e6), (1.30e28, 10e12))
ISO_FLOP = _through((1.84e19, 400e6), (1.75e28, 10e12))

HOFFMANN = Loss(
    irreducible=1.69,
    size=406.4,
    size_exponent=0.34,
    text=410.7,
    text_exponent=0.28,
    source="Hoffmann et al. 2022, equation 10 (https://arxiv.org/abs/2203.15556)",
)
# The same fit with the digits in the TeX source of the paper. Those that were rounded away make the
# best model a quarter larger at 5.76e23 FLOPs: only with them does the law give the paper's own
# 40e9 (Figure 4) and its Table A3.
HOFFMANN_UNROUNDED = Loss(
    irreducible=1.6934,
    size=406.4,
    size_exponent=0.3392,
    text=410.7,
    text_exponent=0.2849,
    source="reported by Besiroglu et al. 2024, Table 1 (https://arxiv.org/abs/2404.10102)",
)
# Fitted again to the points of Hoffmann et al.'s Figure 4: their own fit had not converged.
BESIROGLU = Loss(
    irreducible=1.8172,
    size=482.01,
    size_exponent=0.3478,
    text=2085.43,
    text_exponent=0.3658,
    source="Besiroglu et al. 2024, Table 1 (https://arxiv.org/abs/2404.10102)",
)


@checked
def kaplan(budget: Positive) -> Split:
    """Split a budget by Kaplan et al.

    2020, Table 6: N = 1.3e9 * (C_min / PF-day)^0.73, no embeddings.

    C_min would suffice with tiny batches. At the critical batch size, as they advise, a training
    takes C = 2 C_min (section 6.3). Read in this way the law gives what Hoffmann et al. compare
    with (appendix D.4), and D = 2.2e10 * (C_min / PF-day)^0.27 tokens, as Table 6 has it; equation
    6.7 prints 4e10 and 0.26.
    """
    parameters = 1.3e9 * (budget / 2 / PF_DAY) ** 0.73
    return Split(parameters=parameters, tokens=budget / (6 * parameters))


LAWS: dict[str, Callable[[float], Split]] = {
    "Kaplan 2020": kaplan,
    "Hoffmann 2022, training curves": TRAINING_CURVES.best,
    "Hoffmann 2022, equal FLOPs": ISO_FLOP.best,
    "Hoffmann 2022, fitted loss": HOFFMANN_UNROUNDED.best,
    "Besiroglu 2024": BESIROGLU.best,
}
