"""Exercise: save a checkpoint of several files so that a power cut spoils none that is there.

`failures.save` is killed, and what it has written to the cache stays there. Here the machine goes,
and its cache with it. The function is called once; the judges replay its verbs up to each moment,
and load whatever a power cut may leave then.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardlab import comm

from ..checker import Case, Dependent, Exercise, Finding, on_each_rank
from ..shared import disk

KEPT = 2  # checkpoints
Pieces = dict[str, bytes]
Loaded = list[tuple[int, Pieces | None]]  # the newest steps; None: a piece is missing


class Given(NamedTuple):
    """The checkpoints that exist, and the one to save."""

    before: tuple[int, ...]  # steps, in ascending order
    step: int
    names: tuple[str, ...]  # of the pieces

    def __str__(self) -> str:
        steps = " and ".join(map(str, self.before)) or "no step"
        return f"{steps} saved before, now step {self.step} with {' and '.join(self.names)}"

    def pieces(self, step: int) -> Pieces:
        """Make the pieces of a step."""
        return {name: f"{name} of step {step}".encode() for name in self.names}

    def files(self) -> disk.Files:
        """Make the files of the checkpoints that exist."""
        files = {}
        for step in self.before:
            files[f"{step}.whole"] = "\n".join(self.names).encode()
            files |= {f"{step}.{name}": data for name, data in self.pieces(step).items()}
        return files

    def last(self, newest: int) -> Loaded:
        """Return what is to be found where `newest` is the last checkpoint."""
        steps = [step for step in (*self.before, self.step) if step <= newest]
        return [(step, self.pieces(step)) for step in steps[::-1][:KEPT]]


@dataclass
class Committed:
    """The verbs that the function has called, and the bytes of each write."""

    log: list[tuple[str, ...]]
    contents: list[bytes]

    def moments(self, given: Given) -> Iterator[tuple[str, disk.CachedFolder]]:
        """Yield the folder before the first verb and after each, and the moment in words."""
        folders = disk.replay(given.files(), self.log, self.contents)
        verbs = [" ".join(verb) for verb in self.log]
        for number, folder in enumerate(folders):
            last = f", {verbs[number - 1]}" if number else ""
            yield f"the power fails after verb {number} of {len(verbs)}{last}", folder


def attempt(
    function: Callable[..., Any], group: comm.Group | None, case: Case, rank: int
) -> Committed:
    """Save once, and note what was called."""
    given: Given = case.given
    store = disk.on_disk(given.files())
    function(store, given.step, given.pieces(given.step))
    return Committed(store.log, store.contents)


def load(files: disk.Files) -> Loaded:
    """Load the last checkpoints, the newest first, by the files that mark them as whole."""
    steps = [name.removesuffix(".whole") for name in files if name.endswith(".whole")]
    newest = sorted((int(step) for step in steps if step.isdecimal()), reverse=True)[:KEPT]
    return [(step, _pieces(files, step)) for step in newest]


def _pieces(files: disk.Files, step: int) -> Pieces | None:
    names = files[f"{step}.whole"].decode(errors="replace").split()
    try:
        return {name: files[f"{step}.{name}"] for name in names}
    except KeyError:
        return None


@on_each_rank
def saves(case: Case, rank: int, seen: Committed) -> Finding | None:
    """Ask that without a power cut the last checkpoints are there, and no other file."""
    given: Given = case.given
    *_, (_, folder) = seen.moments(given)
    right, files = given.last(given.step), folder.files()
    if load(files) != right:
        return Finding(f"{given}; no power cut", _show(right), _show(load(files)))
    marks = {f"{step}.whole" for step, _ in right}
    wanted = marks | {f"{step}.{name}" for step, _ in right for name in given.names}
    if files.keys() == wanted:
        return None
    shown = ", ".join(sorted(files.keys() - wanted))
    return Finding(f"{given}; no power cut", f"the files of {len(right)} steps", f"also {shown}")


def _after_cuts(case: Case, seen: Committed) -> Iterator[tuple[str, Loaded, bool]]:
    """Yield what is loaded after each power cut, and whether the function had returned."""
    for number, (moment, folder) in enumerate(seen.moments(case.given)):
        for kept, files in folder.power_cuts():
            shown = f"{case.given}; {moment}; {kept}"
            yield shown, load(files), number == len(seen.log)


@Dependent
@on_each_rank
def survives(case: Case, rank: int, seen: Committed) -> Finding | None:
    """Ask that the newest checkpoint is whole, and the new one or the last one before it."""
    given: Given = case.given
    allowed = [given.last(step)[:1] for step in (*given.before[-1:], given.step)]
    if not given.before:
        allowed.insert(0, [])
    for cut, loaded, _ in _after_cuts(case, seen):
        if loaded[:1] not in allowed:
            expected = ", or ".join(map(_show, allowed))
            return Finding(cut, expected, _show(loaded[:1]))
    return None


@Dependent
@on_each_rank
def keeps_the_one_before(case: Case, rank: int, seen: Committed) -> Finding | None:
    """Ask that the checkpoint before the newest is whole, too."""
    given: Given = case.given
    for cut, loaded, _ in _after_cuts(case, seen):
        right = given.last(loaded[0][0]) if loaded else []
        if loaded[1:] != right[1:]:
            return Finding(cut, _show(right), _show(loaded))
    return None


@Dependent
@on_each_rank
def is_safe(case: Case, rank: int, seen: Committed) -> Finding | None:
    """Ask that the new checkpoint is the newest, whatever comes after the function's return."""
    for cut, loaded, has_returned in _after_cuts(case, seen):
        newest = loaded[0][0] if loaded else None
        if has_returned and newest != case.given.step:
            right = case.given.last(case.given.step)[:1]
            return Finding(cut, _show(right), _show(loaded[:1]))
    return None


def _show(loaded: Loaded) -> str:
    return " and ".join(_show_one(*each) for each in loaded) or "no checkpoint"


def _show_one(step: int, pieces: Pieces | None) -> str:
    if pieces is None:
        return f"step {step} without one of its pieces"
    shown = [f"{name}: {data.decode(errors='replace')!r}" for name, data in pieces.items()]
    return f"step {step} with {', '.join(shown) or 'no piece'}"


EXERCISE = Exercise(
    name="operations.commit",
    compare="shardlab.ranks.checkpoint.saving.write",
    points=3,
    pure=True,
    cases=[
        Case(1, "the first checkpoint", Given((), 100, ("rank0",))),
        Case(1, "the second checkpoint", Given((100,), 200, ("rank0",))),
        Case(1, "the third checkpoint", Given((100, 200), 300, ("rank0",))),
        Case(1, "more digits and more pieces", Given((800, 900), 1000, ("rank0", "rank1"))),
    ],
    attempt=attempt,
    properties={
        "without a power cut the last two are there, and no other": saves,
        "a power cut at any moment leaves a whole checkpoint": survives,
        "the new one is safe when the function returns": is_safe,
        "a power cut leaves the checkpoint before it, too": keeps_the_one_before,
    },
)
