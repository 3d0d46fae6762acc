"""A bug that somebody had: one text that is right or wrong, numbers, and what sees it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.files.arguments import checked

from ..advice import read
from ..states import parse
from ..tracer import Tracer

Numbers = Any  # a number, or nested lists of numbers
Input = tuple[str, Numbers]  # its type, and the whole tensor


@dataclass(frozen=True)
@checked
class Bug:
    """A bug. Its text takes a reader, whether it is right, and the inputs.

    refusal: what the tracer's message contains; "" if types cannot see the bug, and then `net` says
    what catches it. Results are listed for each rank, or once for all.
    """

    title: str
    text: Callable[..., Any]
    seen: str  # a thread in public
    inputs: Sequence[Input]
    right: Numbers
    wrong: Numbers
    refusal: str = ""
    net: str = ""
    wrong_inputs: Sequence[Input] = ()  # where the text is right and data are not

    @property
    def mesh(self) -> dict[str, int]:
        """Two ranks along each axis that its inputs name, in this order."""
        axes = [axis for text, _ in self.inputs for axis in parse(text).axes]
        return dict.fromkeys(axes, 2)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dim."""
        sizes: dict[str, int] = {}
        for text, numbers in self.inputs:
            for name in parse(text).names:
                sizes[name] = len(numbers)
                numbers = numbers[0]
        return sizes

    def trace(self, right: bool) -> Tracer:
        """Read one of its programs with types. Errors: Refusal, with advice on the whole text."""
        tracer = Tracer(self.mesh, self.sizes)
        inputs = [tracer.given(text) for text, _ in self.inputs]
        read(lambda on, *inputs: self.text(on, right, *inputs), tracer, *inputs)
        return tracer
