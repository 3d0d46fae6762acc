"""Mutants: a method with one of its redistributions removed, doubled, or turned into another."""

from collections.abc import Iterator

from shardlab.files.arguments import checked

from .altered import Altered, Mutant
from .methods.method import Method
from .redistribution import Redistribution, possible
from .states import Mesh, Sharding, Sizes
from .tracer import Tracer


@checked
def mutants(method: Method, mesh: Mesh, sizes: Sizes) -> Iterator[Mutant]:
    """Yield each redistribution removed, doubled, and turned: its mirror, and all other targets.

    Errors: Refusal for a method that is wrong itself.
    """
    tracer = Altered(Tracer(mesh, sizes))
    inputs = [tracer.given(text) for text in method.inputs.values()]
    method(tracer, *inputs)
    for number, (x, change) in enumerate(tracer.seen, start=1):
        yield Mutant("removed", number, change)
        yield Mutant("doubled", number, change, (change, change))
        for other in dict.fromkeys([change.mirror, *_turned(x, change)]):
            if other != change:
                yield Mutant("turned", number, change, (other,))


def _turned(x: Sharding, change: Redistribution) -> Iterator[Redistribution]:
    return (other for other in possible(x, change.axis) if other != change)
