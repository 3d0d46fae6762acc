"""Plain files with holes: the cell that a student completes, and the check of each hole.

A line is right if training with it equals training with the plain file: every parameter, after
every step, in float64, on 1 to 4 ranks with samples of their own. The lines that train are those of
the plain file's docstring.
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from itertools import zip_longest
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from shardlab import comm, launch, trace
from shardlab.files.given import instead
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.plain import context_parallel, data_parallel
from shardlab.ranks import mixture, transformer
from shardlab.ranks.observe import ledger
from shardlab.ranks.observe.saved_tensors import SavedTensors

from . import evidence
from .attempts import shorten
from .holes import HOLES

WORLD_SIZES = (3, 2, 4, 1)  # first the one that notices most: 3 do not divide the samples
STEPS, SAMPLES, LENGTH, VOCABULARY = 2, 7, 24, 24
LIMIT = 30.0  # s for one world size; the launcher sees a deadlock earlier
IN_ORDER = ("pipeline",)  # files that are about the order of work, and what is kept meanwhile
SMALL = TransformerSpec(
    vocab_size=VOCABULARY, context_length=LENGTH, hidden_size=24, num_layers=1, num_heads=12
)
DEEP = replace(SMALL, num_layers=3)  # with embedding and head, for up to 4 stages
RULES = Experts(num_experts=12, expert_size=10, per_token=2)
ROUTED = replace(SMALL, style="llama", num_kv_heads=12, experts=RULES)
SPECS = {"expert_parallel": ROUTED, "pipeline": DEEP}  # of the others: SMALL
WAYS = {  # what the docstring's lines use, and what they may use instead
    "zero": ("zero.ZeRO1", "zero.ZeRO2", "zero.ZeRO3"),
    "context_parallel": ("context.gathered", "context.ulysses"),
    "pipeline": ("pipeline.one_forward_one_backward", "pipeline.gpipe"),
}
# By its first line `check` finds the cell again.
FIRST_LINE = "# The file {} with holes: replace each `raise` by your own lines, and run the cell\n"
OPEN = "raise NotImplementedError("


# ---- the cell ------------------------------------------------------------------------------------


def plain(name: str) -> str:
    """Return the text of a plain file. Errors: ValueError for a file without holes."""
    if name not in HOLES:
        raise ValueError(f"no file with holes is called {name!r}; {instead(name, HOLES)}")
    return inspect.getsource(import_module(f"shardlab.plain.{name}"))


def lines(name: str) -> list[str]:
    """Return the whole line of each hole, as it stands in the plain file."""
    whole = plain(name).splitlines()
    return [next(line for line in whole if hole.code in line) for hole in HOLES[name]]


def cell(name: str) -> str:
    """Return the plain file with its holes open."""
    text = FIRST_LINE.format(name) + plain(name)
    for number, (hole, line) in enumerate(zip(HOLES[name], lines(name), strict=True), 1):
        stop = f'{OPEN}"hole {number} of {name} is open: write your lines in its place")'
        inside = [f"hole {number}: {hole.ask}", stop, f"end of hole {number}"]
        indent = line[: len(line) - len(line.lstrip())]
        marked = [f"{indent}# {inside[0]}", indent + inside[1], f"{indent}# {inside[2]}"]
        text = text.replace(line, "\n".join(marked))
    return text


def written(name: str, text: str) -> list[str]:
    """Return what stands in each hole. Errors: ValueError for a hole without its marks."""
    found = []
    for number, _ in enumerate(lines(name), 1):
        begin, end = rf"^ *# hole {number}:.*\n", rf"^ *# end of hole {number}$"
        hole = re.search(rf"{begin}([\s\S]*?){end}", text, re.MULTILINE)
        if hole is None:
            marks = f"`# hole {number}: ...` and `# end of hole {number}`"
            raise ValueError(f"the marks of hole {number} are missing; put back {marks}")
        found.append(hole[1].rstrip("\n"))
    return found


def filled(name: str, answers: dict[int, str]) -> str:
    """Return the plain file with answers in some of its holes, by their place in the list."""
    text, right = plain(name), lines(name)
    for place, answer in answers.items():
        text = text.replace(right[place], answer)
    return text


# ---- the check -----------------------------------------------------------------------------------


def check(name: str, text: str = "") -> bool:
    """Judge each hole by itself, print what is wrong, and return whether all are right.

    text: the completed cell; without it, the one that was run last in this notebook. Lines outside
    of the holes are not judged. Errors: ValueError for an unknown name, or where no cell was run.
    """
    answers = dict(enumerate(written(name, text or _cell_run(name))))
    unwritten = {n: f"open: {HOLES[name][n].ask}" for n, each in answers.items() if OPEN in each}
    closed = {n: answer for n, answer in answers.items() if n not in unwritten}
    wrong, together = _judged(name, closed)
    wrong |= unwritten
    for n in answers:
        print(f"hole {n + 1}: {wrong.get(n, 'right')}")
    if together:
        print(f"What is right beside our other lines is not right together: {together}")
    return not wrong and not together


def _judged(name: str, answers: dict[int, str]) -> tuple[dict[int, str], str]:
    """Return why answers are wrong alone, and why the others are wrong together."""
    wrong: dict[int, str] = {}
    for size in WORLD_SIZES:
        while together := trial(name, answers, size):
            alone = {n: trial(name, {n: answer}, size) for n, answer in answers.items()}
            found = {n: why for n, why in alone.items() if why}
            if not found:
                return wrong, together
            wrong |= found
            answers = {n: answer for n, answer in answers.items() if n not in found}
    return wrong, ""


def _cell_run(name: str) -> str:
    """Return the latest cell with the file that this notebook has run."""
    first, _, _ = cell(name).partition("\n")
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    history = shell.user_ns["In"] if shell else []
    cells = [each for each in history if each.startswith(first)]
    if not cells:
        raise ValueError(f"run the cell first that begins with {first!r}")
    return str(cells[-1])


def trial(name: str, answers: dict[int, str], world_size: int) -> str:
    """Train with answers in some holes and with none; return what differs, or nothing."""
    if not answers:
        return ""
    text = filled(name, answers)
    try:
        compile(text, name, "exec")
        found = launch.run(difference, name, text, world_size=world_size, timeout=LIMIT)
    except SyntaxError as error:
        return f"no Python: {error.msg}"
    except launch.RankError as error:
        return f"fails on {world_size} ranks\n{textwrap.indent(shorten(str(error)), '    ')}"
    told = (f"on {world_size} ranks, rank {rank} {why}" for rank, why in enumerate(found) if why)
    return next(told, "")


def difference(group: comm.Group, name: str, text: str) -> str:
    """Train on this rank with both texts; say what differs first, or nothing.

    The same numbers are not enough: a method that sends more bytes or messages, in another order,
    or keeps more for backward than the plain file is another method.
    """
    theirs, ours = train_with(group, name, text), _right(group, name)
    for what, right in ours.held.items():
        mine = theirs.held.get(what)
        if mine is None or mine.shape != right.shape:
            held = "no nn.Parameter" if mine is None else f"a tensor of shape {[*mine.shape]}"
            return f"holds {held} as {what}, expected one of shape {[*right.shape]}"
        place = evidence.first_difference(right, mine)
        if place is not None:
            got, expected = mine.flatten()[place], right.flatten()[place]
            digits = _digits(float(got), float(expected))
            numbers = (
                f"{got:.{digits}g} as number {place} of {what}, expected {expected:.{digits}g}"
            )
            return f"has {numbers}"
    sent = [sum(map(trace.wire_bytes, each.sent)) for each in (theirs, ours)]
    if sent[0] > sent[1] + 0.5 or len(theirs.sent) > len(ours.sent):
        counts = f"{len(theirs.sent)} messages, expected {sent[1]:.0f} in {len(ours.sent)}"
        return f"trains the same numbers, and sends {sent[0]:.0f} bytes in {counts}"
    if name in IN_ORDER and theirs.order != ours.order:
        pairs = enumerate(zip_longest(theirs.order, ours.order, fillvalue="message less"))
        where, op, planned = next((n, a, b) for n, (a, b) in pairs if a != b)
        each = f"a {op} as message {where}, expected a {planned}"
        return f"trains the same numbers, and has {each}: it works in another order"
    if name in IN_ORDER and theirs.kept > ours.kept:
        kept = f"{theirs.kept} bytes for backward, expected {ours.kept}"
        return f"trains the same numbers, and keeps {kept}"
    return ""


def _digits(a: float, b: float) -> int:
    """Return how many significant digits tell two numbers apart: 6 at least, 17 at most."""
    return next((n for n in range(6, 17) if f"{a:.{n}g}" != f"{b:.{n}g}"), 17)


@cache
def _right(group: comm.Group, name: str) -> "Trained":
    return train_with(group, name, plain(name))


# ---- one training --------------------------------------------------------------------------------


def usage(source: str) -> str:
    """Return the lines of code in a file's docstring: from `model =` to the next empty line."""
    found = re.search(r"^    model = .*?(?=\n\n)", source, re.MULTILINE | re.DOTALL)
    assert found is not None
    return textwrap.dedent(found.group())


def load(name: str, source: str) -> ModuleType:
    """Return the source as a module that stands where the plain ones do."""
    module = ModuleType(f"shardlab.plain.{name}")
    module.__package__ = "shardlab.plain"
    exec(compile(source, f"plain/{name}.py", "exec"), module.__dict__)
    return module


@dataclass
class Trained:
    """What a rank holds after each step, what it has sent, and the most that it kept for backward."""

    held: dict[str, Tensor] = field(default_factory=dict)
    sent: list[trace.Event] = field(default_factory=list)
    kept: int = 0

    @property
    def order(self) -> list[str]:
        """The kinds of the messages, one after the other."""
        return [event.op for event in self.sent]


def train_with(group: comm.Group, name: str, source: str) -> Trained:
    """Run the docstring's lines in all their ways; return what this rank holds after each step."""
    trained = Trained()
    ways = WAYS.get(name, ("",))
    for way in ways:
        variables = _variables(group, name)
        variables[name] = load(name, source)
        variables["batches"] = _batches(variables, trained.held, way.partition(".")[2])
        lines = usage(source).replace(ways[0], way)
        watched = SavedTensors() if name in IN_ORDER else nullcontext()
        with ledger.Ledger() as book, watched:
            exec(lines, variables)
        trained.sent += trace.communication(book.events)
        if isinstance(watched, SavedTensors):
            trained.kept += watched.peak
    return trained


def _batches(variables: dict[str, Any], held: dict[str, Tensor], way: str) -> Iterator[Tensor]:
    """Yield the batch of each step, and note after the step what the rank holds."""
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        yield torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=generator)
        after = f"after step {step}" + (f" of {way}" if way else "")
        held |= {f"{what} {after}": x.detach().clone() for what, x in _held(variables)}


def _held(variables: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield a rank's pieces, its layers or its model, and the tokens or samples that it has."""
    model = variables["stage"].layers if "stage" in variables else variables["model"]
    names = {parameter: name for name, parameter in model.named_parameters()}
    if "states" in variables:
        pieces = variables["states"].piece
        yield from ((f"the piece of {names.get(p, 'a parameter')}", x) for p, x in pieces.items())
        return
    yield from ((name, parameter) for parameter, name in names.items())
    if "mine" in variables:
        yield "the number of its samples", torch.tensor(len(variables["mine"]))
    if "context" in variables:
        yield "the tokens of this rank", variables["context"].mine


def _variables(group: comm.Group, name: str) -> dict[str, Any]:
    """Return what the docstring's lines use beside the file itself."""
    size = group.size()
    documents = torch.arange(4).repeat_interleave(torch.tensor([5, 1, 11, 7]))
    modules = {"data_parallel": data_parallel, "context_parallel": context_parallel}
    library = {"partial": partial, "replace": transformer.replace, "rebalance": mixture.rebalance}
    torch_of_ours = SimpleNamespace(optim=SimpleNamespace(AdamW=_adamw))
    ep = size if size % 2 else 2  # of 4 ranks two hold the same experts
    sizes = {"S": LENGTH, "n": 2, "ep": ep, "documents": documents}
    variables: dict[str, Any] = {"group": group, "torch": torch_of_ours, "nn": nn, **sizes}
    variables["spec"] = SPECS.get(name, SMALL)
    return variables | modules | library | {"Transformer": partial(_model, seed=group.rank())}


def _model(spec: TransformerSpec, seed: int) -> nn.Module:
    """Return a model whose every parameter is random: ones and zeros would hide mistakes."""
    torch.manual_seed(seed)
    model = transformer.Transformer(spec).double()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    return model


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    """Return AdamW with a large eps, so that it does not divide a wrong scale away."""
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)
