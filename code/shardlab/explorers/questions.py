"""Questions with an answer: a guess at a number is judged by its ratio, a choice as right or wrong.

Every sentence stands here once. A page carries the sentences as templates, and guess.js fills in
the guess.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from .page import slug

# 1,000 and 1e3 are numbers, too.
DIGITS = r"((\d{1,15}|\d{1,3}(,\d{3}){1,4})(\.\d{0,15})?|\.\d{1,15})([eE][+\-]?\d{1,2})?"
RIGHT = "You guessed {guess}. That is right."
PLAIN = 1e-3, 1e9  # numbers between the two are written without an exponent


@dataclass(frozen=True, kw_only=True)
class BaseQuestion:
    """What both kinds of questions share.

    name: identifies the question in the whole book, and its guess is kept under this name. why: one
    sentence that is shown with the answer, or nothing.
    """

    name: str
    text: str
    why: str = ""

    def __post_init__(self) -> None:
        if self.name != slug(self.name):
            raise ValueError(f"{self.name!r} cannot name a question; take {slug(self.name)!r}")


@dataclass(frozen=True, kw_only=True)
class Number(BaseQuestion):
    """A question whose answer is a number above zero.

    units: what stands behind 1, and behind every other number. within: the factor up to which a
    guess is close. Raises ValueError for an answer that is zero, negative or infinite.
    """

    answer: float
    units: tuple[str, str] = ("", "")
    within: float = 1.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.answer < math.inf:
            raise ValueError(
                f"a guess has no ratio to the answer {self.answer}; ask with guess.choice instead"
            )
        if self.within < 1:
            raise ValueError(
                f"within is a factor of at least 1, got {self.within}; 1.1 allows 10 %"
            )

    @property
    def pattern(self) -> str:
        """A guess as a regular expression for Python and browsers; its unit may follow."""
        units = "|".join(re.sub(r"([\\^$.*+?()\[\]{}|/])", r"\\\1", unit) for unit in self.units)
        return rf"\s*(?=[\d.,]*[1-9]){DIGITS}\s*({units})?\s*"

    @property
    def ask(self) -> str:
        """The advice for a guess that is not a number."""
        return f"Type a number above zero, such as {self._quantity(300)}, 2.8, 1,000 or 1e3."

    @property
    def solution(self) -> str:
        """The answer with its unit."""
        return self._quantity(self.answer)

    def shown(self, given: str) -> str:
        """Return a guess with its unit. Errors: ValueError with `ask`, unless it is a number."""
        return self._quantity(self._value(given))

    def judge(self, given: str) -> str:
        """Return the sentence that says how far off a guess is. Errors: those of `shown`."""
        x = self._value(given)
        ratio = x / self.answer
        factor = max(ratio, 1 / ratio)
        how = "close" if factor <= self.within else "small" if ratio < 1 else "large"
        if number_text(x) == number_text(self.answer):
            how = "right"
        words = {"guess": self._quantity(x), "factor": number_text(rounded(factor, 2))}
        return self._sentences()[how].format(**words)

    def rules(self) -> dict[str, Any]:
        """Return what guess.js needs to judge in the same way."""
        return {
            "answer": self.answer,
            "units": self.units,
            "within": self.within,
            "says": self._sentences(),
        }

    def _sentences(self) -> dict[str, str]:
        small = self.within < 2  # noqa: PLR2004, a factor of 2 reads better than 100 %
        near = f"{100 * (self.within - 1):.0f} %" if small else f"a factor of {self.within:g}"
        how = {
            "close": f"within {near}",
            "small": "too small by a factor of {factor}",
            "large": "too large by a factor of {factor}",
        }
        guessed = f"You guessed {{guess}}; the answer is {self.solution}. Your guess is"
        return {"right": RIGHT, **{name: f"{guessed} {words}." for name, words in how.items()}}

    def _quantity(self, x: float) -> str:
        return f"{number_text(x)} {self.units[x != 1]}".strip()

    def _value(self, given: str) -> float:
        found = re.fullmatch(self.pattern, given, re.ASCII)
        if not found:
            raise ValueError(self.ask)
        return float((found[1] + (found[5] or "")).replace(",", ""))


@dataclass(frozen=True, kw_only=True)
class Choice(BaseQuestion):
    """A question with one right answer among its options.

    Errors: ValueError when the answer is not among the options.
    """

    answer: str
    options: tuple[str, ...]
    ask = "Choose one of the answers first."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.answer not in self.options or len({*self.options}) < max(2, len(self.options)):
            wants = "give two or more options, all different, with the answer among them"
            raise ValueError(
                f"the options are {[*self.options]}, the answer is {self.answer!r}; {wants}"
            )

    @property
    def solution(self) -> str:
        """The right option."""
        return self.answer

    def shown(self, given: str) -> str:
        """Return the chosen option. Errors: ValueError with `ask` for any other text."""
        if given not in self.options:
            raise ValueError(self.ask)
        return given

    def judge(self, given: str) -> str:
        """Return the sentence that says whether a choice is right. Errors: those of `shown`."""
        return self._sentences()["right" if self.shown(given) == self.answer else "wrong"].format(
            guess=f'"{given}"'
        )

    def rules(self) -> dict[str, Any]:
        """Return what guess.js needs to judge in the same way."""
        return {"answer": self.answer, "says": self._sentences()}

    def _sentences(self) -> dict[str, str]:
        return {"right": RIGHT, "wrong": f'You guessed {{guess}}. The answer is "{self.answer}".'}


def number_text(x: float) -> str:
    """Write a positive number for a reader: whole numbers in full, others with three digits."""
    short = x if float(x).is_integer() and x < PLAIN[1] else rounded(x, 3)
    if PLAIN[0] <= short < PLAIN[1]:
        return f"{int(short) if float(short).is_integer() else short:,}"
    digits, power = f"{short:.2e}".split("e")
    return f"{float(digits):g}e{int(power)}"


def rounded(x: float, digits: int) -> float:
    """Round to significant digits, halves upwards, as JavaScript's toPrecision does."""
    return float(Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal(Decimal(x)))
