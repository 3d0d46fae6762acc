"""A hole of a workshop's cell stands for one line, is right if it trains the same, and is told by its number if not."""

import re
import sys
from types import SimpleNamespace

import cloudpickle
import pytest

from shardlab.exercises import workshop
from shardlab.exercises.holes import HOLES
from shardlab.launch import run

from ..plain import lesson

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

PLACES = [(name, place) for name, holes in HOLES.items() for place in range(len(holes))]
WRONG = {  # what a student might write: (line, what the launcher reports)
    "data_parallel": [
        ("tensor.copy_(tensor)", None),
        ("return batch.tensor_split(group.size())[0]", None),
        ("partial = parameter.grad / group.size()", None),
        ("comm.all_reduce(partial, group)", None),
    ],
    "zero": [
        ("row = rows(p.data, group)[0]", None),
        ("new = rows(p.grad, self.group)[self.group.rank()]", None),
        ("new = piece.grad", None),
        ("whole = self.piece[p].repeat(self.group.size(), 1)", None),
        ("loss(x, targets).backward()", None),
        ("go_back(x, gradient)", None),
    ],
    "tensor_parallel": [
        ("return grad, None", None),
        ("return comm.all_reduce(grad, ctx.group), None", "AttributeError"),
        ("self.weight = shard(linear.weight, 0, group)", "RuntimeError"),
        ("x = CopyToRanks.apply(x, self.group)", None),
        ("return x if self.bias is None else x + self.group.size() * self.bias", None),
        ("row = tokens", None),
    ],
    "context_parallel": [
        ("last = last", None),
        ("in_document = starts <= order[:, None]", None),
        ("not_later = order < order[:, None]", None),
        ("mine = partial[ctx.group.rank()][None]", None),
        ("ctx.way_back = group, split, join", "RuntimeError|disagree"),
    ],
    "ring_attention": [
        ("y = y * (new - lse).exp()", None),
        ("p = scores.softmax(-1)", None),
        ("ds = p * dp", None),
        ("gradient = torch.stack([dk, dv])", None),
        ("source = group.rank() + turn", "IndexError"),
    ],
    "linear_attention": [
        ("error = values[:, :, :, token]", None),
        ("both: Tensor = first @ m + new", None),
        ("state = then(state, earlier)", None),
        ("before = state", None),
        ("dx = comm.exchange(gradient, ctx.group, to=after, source=before)", None),
    ],
    "expert_parallel": [
        ("holder = number % ep", None),
        ("token = order % k", None),
        ("received = sends", "rank"),
        ("rows = AllToAllRows.apply(rows, group, there, here)", "rank"),
        ("rows = rows * weights[: len(rows), None].to(rows.dtype)", None),
        ("group = self.group", None),
    ],
    "pipeline": [
        ("warm_up = stage.before", "Deadlock"),
        ("self.outputs.send(x.detach())", "disagree"),
        ("y = self.loss(y, targets)", None),
        ("x, y = self.kept.pop()", "disagree"),
        ("self.gradients.send(x)", "requires a gradient"),
        ("self.tied.grad = theirs", None),
    ],
}


def in_place(name, place, line):
    """The plain file with this line in one of its holes, as deep as the right line is."""
    right = workshop.lines(name)[place]
    return workshop.filled(name, {place: right[: len(right) - len(right.lstrip())] + line})


def completed(name, **wrong):
    """The cell with the right line in every hole, or a wrong one: hole_2="..."."""
    text = workshop.cell(name)
    for place, right in enumerate(workshop.lines(name)):
        indent = right[: len(right) - len(right.lstrip())]
        answer = wrong.get(f"hole_{place + 1}")
        stop = next(line for line in text.splitlines() if workshop.OPEN in line)
        text = text.replace(stop, right if answer is None else indent + answer, 1)
    return text


@pytest.mark.parametrize("name", HOLES)
def test_a_hole_stands_once_in_its_file_and_the_right_lines_make_the_file_again(name):
    plain = workshop.plain(name)
    assert 3 <= len(HOLES[name]) <= 6
    assert [plain.count(hole.code) for hole in HOLES[name]] == [1] * len(HOLES[name])
    right = workshop.written(name, completed(name))
    assert right == workshop.lines(name)
    kept = [line for line in completed(name).splitlines()[1:] if "# hole " not in line and "# end of hole" not in line]
    assert "\n".join([*kept, ""]) == plain == workshop.filled(name, dict(enumerate(right)))


@pytest.mark.parametrize("name", HOLES)
def test_a_cell_with_open_holes_runs_and_each_is_told(name, capsys):
    workshop.load(name, workshop.cell(name))
    assert not workshop.check(name, workshop.cell(name))
    told = [f"hole {number}: open: {hole.ask}" for number, hole in enumerate(HOLES[name], 1)]
    assert capsys.readouterr().out.splitlines() == told


def everything(group):
    return {name: workshop.difference(group, name, workshop.plain(name)) for name in HOLES}


@pytest.mark.parametrize("world_size", workshop.WORLD_SIZES)
def test_right_lines_pass(world_size):
    assert run(everything, world_size=world_size, ranks="threads") == [dict.fromkeys(HOLES, "")] * world_size


def agrees(group, name, text):
    return not workshop.difference(group, name, text)


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_a_wrong_line_is_noticed(name, place):
    line, report = WRONG[name][place]
    found = lesson.verdict(agrees, name, in_place(name, place, line))
    assert lesson.noticed(found, report), found


WASTEFUL = [  # lines that train the same numbers by another method
    ("zero", 1, "new = comm.all_reduce(rows(p.grad, self.group), self.group)[self.group.rank()]", "sends .* bytes"),
    ("pipeline", 0, "warm_up = 0", "it works in another order"),
    ("pipeline", 0, "warm_up = min(stage.after + 1, len(microbatches))", "it works in another order"),
    ("pipeline", 0, "warm_up = len(microbatches)", "it works in another order"),
]


@pytest.mark.parametrize(("name", "place", "line", "says"), WASTEFUL, ids=[line for _, _, line, _ in WASTEFUL])
def test_the_same_numbers_by_another_method_are_told(name, place, line, says):
    found = run(workshop.difference, name, in_place(name, place, line), world_size=3, ranks="threads")
    assert any(re.search(f"trains the same numbers, and .*{says}", each) for each in found), found


TOLD = [  # lines whose first trace is not in six digits of a parameter
    ("data_parallel", 1, "return batch.chunk(group.size())[group.rank()]", "1 as number 0 of the number of its sample"),
    ("ring_attention", 2, "ds = p * (dp - (p * dp).sum(-1, keepdim=True))", r"has (\S+) as .*, expected (?!\1$)"),
    ("tensor_parallel", 2, "self.weight = shard(linear.weight.T, 0, group).T", "holds no nn.Parameter as blocks.0"),
]


@pytest.mark.parametrize(("name", "place", "line", "says"), TOLD, ids=[line for _, _, line, _ in TOLD])
def test_what_differs_is_told_in_words_that_show_it(name, place, line, says):
    found = run(workshop.difference, name, in_place(name, place, line), world_size=3, ranks="threads")
    assert any(re.search(says, each) for each in found), found


def test_the_hole_that_is_wrong_is_told_and_the_others_are_right(capsys):
    text = completed("data_parallel", hole_1="tensor.copy_(", hole_3="partial = parameter.grad / group.size()")
    assert not workshop.check("data_parallel", text)
    first, second, third, fourth = capsys.readouterr().out.splitlines()
    assert (first, second, fourth) == ("hole 1: no Python: '(' was never closed", "hole 2: right", "hole 4: right")
    number = r"-?[\d.e-]+"
    told = rf"on 3 ranks, rank 0 has {number} as number 0 of [\w.]+ after step 0, expected {number}"
    assert re.fullmatch(f"hole 3: {told}", third), third


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        (lambda holes, size: (1 in holes and size == 3) or (2 in holes and size == 4), "on 3, on 4, right, right"),
        (lambda holes, size: {3, 4} <= holes, "right, right, right, right, not right together: on 3"),
        (lambda holes, size: 1 in holes or {3, 4} <= holes, "on 3, right, right, right, not right together: on 3"),
    ],
)
def test_a_hole_is_judged_on_all_numbers_of_ranks_and_right_ones_together(fails, told, capsys, monkeypatch):
    def trial(_name, answers, size):
        return f"on {size}" if fails({place + 1 for place in answers}, size) else ""

    monkeypatch.setattr(workshop, "trial", trial)
    assert not workshop.check("data_parallel", completed("data_parallel"))
    lines = capsys.readouterr().out.splitlines()
    assert all(line.endswith(end) for line, end in zip(lines, told.split(", "), strict=True))


def test_the_cell_that_a_notebook_ran_last_is_judged(capsys, monkeypatch):
    cells = [completed("data_parallel", hole_4="parameter.grad = partial"), completed("data_parallel"), "check()"]
    shell = SimpleNamespace(user_ns={"In": cells})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert workshop.check("data_parallel")
    assert capsys.readouterr().out == "".join(f"hole {number}: right\n" for number in range(1, 5))
    with pytest.raises(ValueError, match="run the cell first that begins with '# The file zero"):
        workshop.check("zero")


def test_what_is_missing_is_told():
    with pytest.raises(ValueError, match="no file with holes is called 'muon'; choose from data_parallel, zero"):
        workshop.check("muon", "x = 1")
    with pytest.raises(ValueError, match=r"the marks of hole 2 are missing; put back `# hole 2: \.\.\.`"):
        workshop.check("zero", workshop.cell("zero").replace("# end of hole 2", ""))
