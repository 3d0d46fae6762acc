"""A method as a text: the types of its inputs, and lines that a tracer or players read.

    @layer(x="[B/dp, S, h]", up="[h, f/tp] R@dp")       # its loss is the sum of squares
    def columns(on, x, up):
        x = on.redistribute(x, "tp", "I -> R")
        return on.product("B S f", x, up)

A step closes its own loss, and returns new parameters and what it logs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.files.arguments import Count, checked

from ..advice import read
from ..states import Mesh, Sharding, Sizes, parse
from ..tracer import Tracer

Text = Callable[..., Any]


@dataclass(frozen=True)
@checked
class Method:
    """The text of a method, and the types of its inputs by name."""

    text: Text
    inputs: Mapping[str, str]
    closes: bool = True  # whether the text closes a loss itself

    @property
    def name(self) -> str:
        """The name of the text, in words."""
        return self.text.__name__.replace("_", " ")

    def __call__(self, on: Any, *inputs: Any) -> list[Any]:
        """Read the text, let a layer's loss be the sum of squares, and return all results."""
        result = self.text(on, *inputs)
        if not self.closes:
            squares = on.function("square", result)
            on.close(on.product("", squares))
        return list(result) if isinstance(result, tuple) else [result]

    @property
    def types(self) -> list[Sharding]:
        """The types of its inputs."""
        return [parse(text) for text in self.inputs.values()]

    def trace(self, mesh: Mesh, sizes: Sizes, itemsize: Count = 2) -> Tracer:
        """Read it with types. Errors: Refusal; ValueError for a size that does not split."""
        tracer = Tracer(mesh, sizes, itemsize)
        inputs = [tracer.given(text) for text in self.inputs.values()]
        read(self, tracer, *inputs)
        return tracer


def layer(**inputs: str) -> Callable[[Text], Method]:
    """Make a method of a text that returns an activation."""
    return lambda text: Method(text, inputs, closes=False)


def step(**inputs: str) -> Callable[[Text], Method]:
    """Make a method of a text that closes a loss and goes on to the end of the step."""
    return lambda text: Method(text, inputs)
