"""The plain file of the hand-over: what arrives is equal to the bit, and each wanted number is sent once."""

import dataclasses
import inspect
import itertools
import re
import sys

import cloudpickle
import pytest
import torch

from shardlab.launch import RankError, run
from shardlab.plain import hand_over, tensor_parallel, zero
from shardlab.ranks.observe import ledger
from shardlab.sharding import cuts
from shardlab.sharding.layout import Layout
from shardlab.sharding.places import places

from ..rank_types import rank_type
from . import lesson
from .test_tensor_parallel import piece_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SOURCE = inspect.getsource(hand_over)
SPECS = {style: dataclasses.replace(spec, vocab_size=47) for style, spec in lesson.SPECS.items()}  # ZeRO cuts rows
BUCKET = 3_000  # numbers, of some 50,000


def layouts(ranks, pp=True):
    """All that so many ranks allow, of a model of two layers."""
    degrees = [
        (tp, dp, pp) for tp, dp, pp in itertools.product(range(1, 5), repeat=3) if tp * dp * pp == ranks and pp < 3
    ]
    return [
        Layout(tp=tp, dp=dp, pp=stages, zero=stage)
        for tp, dp, stages in degrees
        for stage in ((0, 3) if pp and dp > 1 else (0,))
        if pp or stages == 1
    ]


def rank_tensors(spec_name, layout, rank, whole):
    """What a rank of a layout has: cut by tp, flattened and cut by ZeRO, without the library that lists places."""
    spec = SPECS[spec_name]
    tp, replica, stage = rank % layout.tp, rank // layout.tp % layout.dp, rank // (layout.tp * layout.dp)
    first = [name for name in whole if name.startswith(("embedding", "blocks.0"))]
    here = [name for name in whole if layout.pp == 1 or (name in first) == (stage == 0)]
    pieces = {name: piece_of(whole[name], cuts.model(spec, layout.tp)[name], tp) for name in here}
    if layout.zero == 3:
        group = type("Group", (), {"size": lambda _: layout.dp})()
        pieces = {name: zero.rows(piece, group)[replica] for name, piece in pieces.items()}
    return {name: piece.clone() for name, piece in pieces.items()}


def numbers(shape, seed):
    """A parameter in which no number is there twice, nor in another one."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).add(10_000 * seed).cos().view(shape)


def exchange(group, source, case):
    """Hand numbers over on this rank: whether all arrived, the plan, what ranks had and wanted, what this one sent."""
    style, trainer, generator, apart = case
    module, rank, nan = lesson.load("hand_over", source), group.rank(), float("nan")
    spec = SPECS[style]
    whole = {name: numbers(cut.shape, seed) for seed, (name, cut) in enumerate(cuts.model(spec, 1).items())}
    have, want = places(spec, trainer), places(spec, generator)
    first = trainer.ranks if apart else 0  # of those that generate
    trained, right = {}, {}
    if rank < trainer.ranks:
        trained = rank_tensors(style, trainer, rank, whole)
    if rank >= first:
        right = rank_tensors(style, generator, rank - first, whole)
    generating = {name: torch.full_like(x, nan) for name, x in right.items()}
    have += [[]] * (group.size() - len(have))
    want = [[]] * first + want
    copies = module.plan(have, want)
    mine, theirs = module.views(have[rank], trained), module.views(want[rank], generating)
    sizes = []
    for bucket in module.buckets(copies, BUCKET):
        with ledger.Ledger() as seen:
            module.send(bucket, mine, theirs, group, torch.float64)
        sizes.append(lesson.wire_bytes(None, seen) / 8)
    arrived = all(torch.equal(generating[name], right[name]) for name in right)
    return arrived, copies, have, want, sum(sizes)


def size(box):
    return torch.Size(map(len, box)).numel()


def faults(found):
    """What is wrong with a hand-over, of which every rank returned what it saw; and the numbers that each sent."""
    _, copies, have, want, _ = found[0]
    ranks = range(len(found))
    sent = [sum(size(c.box) for c in copies if c.source == rank != c.to) for rank in ranks]
    got = [sum(size(c.box) for c in copies if c.to == rank) for rank in ranks]
    own = [sum(size(c.box) for c in copies if c.source == rank == c.to) for rank in ranks]
    wrong = {
        "numbers": [rank for rank in ranks if not found[rank][0]],
        "plans differ": [rank for rank in ranks if found[rank][1] != copies],
        "sent otherwise than planned": [rank for rank in ranks if found[rank][4] != sent[rank]],
        "not once": [rank for rank in ranks if got[rank] != sum(size(box) for _, box in want[rank])],
        "own ones sent": [rank for rank in ranks if own[rank] != shared(have[rank], want[rank])],
    }
    return {what: ranks for what, ranks in wrong.items() if ranks}, sent


def shared(have, want):
    """Count the numbers that a rank has and wants, one by one."""
    both = 0
    for name in {name for name, _ in want}:
        held, wanted = (
            {n for each, box in places if each == name for n in itertools.product(*box)} for places in (have, want)
        )
        both += len(held & wanted)
    return both


def cases_of(ranks):
    """On the same ranks, and apart: every pair of layouts, in one style and then the other."""
    pairs = [(a, b, False) for a in layouts(ranks) for b in layouts(ranks, pp=False)]
    for train in range(1, ranks):
        pairs += [(a, b, True) for a in layouts(train) for b in layouts(ranks - train, pp=False)]
    return [(style, *pair) for style, pair in zip(itertools.cycle(lesson.SPECS), pairs, strict=False)]


def all_cases(group):
    return {case: exchange(group, SOURCE, case) for case in cases_of(group.size())}


@pytest.mark.parametrize("ranks", lesson.WORLD_SIZES)
@pytest.mark.parity("trainer_generator", "a hand-over between any two layouts on 1 to 4 ranks: every number")
def test_every_wanted_number_arrives_once_and_equal_to_the_bit(ranks):
    found = run(all_cases, world_size=ranks, ranks=rank_type(ranks))
    for case in found[0]:
        assert faults([rank[case] for rank in found])[0] == {}, case


COPIES = ("gpt2", Layout(dp=3), Layout(), True)
LARGEST = max(torch.Size(cut.shape).numel() for cut in cuts.model(SPECS["gpt2"], 1).values())
MIXED = ("llama", Layout(dp=2, zero=3, tp=2, pp=2), Layout(tp=2, dp=2), True)


@pytest.mark.counted("trainer_generator", "numbers that eight trainers send to two copies, each cut over two ranks")
def test_eight_ranks_hand_over_to_four_and_send_alike():
    """ZeRO-3 x 2, tp = 2, pp = 2: each of the eight sends what it has to both copies, norms but once to each rank."""
    found = run(exchange, SOURCE, MIXED, world_size=12, ranks="threads")
    wrong, sent = faults(found)
    spec, numbers = SPECS["llama"], 0
    for cut in cuts.model(spec, 2).values():
        numbers += torch.Size(cut.shape).numel() * (2 if cut.dim is None else 1)
    assert wrong == {}
    assert sum(sent) == 2 * numbers, "d (P + (t - 1) R), R = numbers that tp does not cut"
    assert sent[8:] == [0] * 4
    for stage in (sent[:4], sent[4:8]):
        assert max(stage) - min(stage) <= 2 * 48, stage  # of 47 words a rank has 24, the other 23; to two copies


def test_holders_of_the_same_numbers_share_the_sending():
    """Three copies that train, one that generates: they differ by no more than the largest parameter."""
    found = run(exchange, SOURCE, COPIES, world_size=4, ranks="threads")
    wrong, sent = faults(found)
    assert wrong == {}
    assert max(sent[:3]) - min(sent[:3]) <= LARGEST


def handed(group):
    """Run the docstring's lines between a trainer of `zero` and a generator of `tensor_parallel`, in float64."""
    spec, numbers = lesson.SPECS["gpt2"], group.rank() // 2  # other numbers where texts are generated
    model = lesson.build("gpt2", False, seed=numbers)
    pair = torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])
    if group.rank() < 2:
        states = zero.ZeRO3([model], pair[0], lesson.adamw)
        trained = {name: states.piece[p] for name, p in model.named_parameters()}
        generating = {}
    else:
        tensor_parallel.parallelize(model, pair[1])
        generating, trained = dict(model.named_parameters()), {}
    variables = {"hand_over": lesson.load("hand_over", SOURCE), "places": places, "Layout": Layout, "spec": spec}
    variables |= {"torch": torch, "group": group, "trained": trained, "generating": generating}
    exec(lesson.changed(usage(), "torch.bfloat16", "torch.float64"), variables)
    tokens = lesson.batch_of(0)[:, :-1]
    return None if trained else model(tokens).detach()  # [B, S, V/2]


def usage():
    lines = SOURCE[SOURCE.index("    have = ") :].partition("\n\n")[0]
    return "\n".join(line[4:] for line in lines.splitlines())


@pytest.mark.parity("trainer_generator", "ZeRO-3 hands over to tensor parallelism: logits of the generator")
def test_the_lines_of_the_docstring_give_a_generator_the_trainers_logits():
    *_, left, right = run(handed, world_size=4)
    expected = lesson.build("gpt2", False, seed=0)(lesson.batch_of(0)[:, :-1])
    torch.testing.assert_close(torch.cat([left, right], -1), expected, rtol=0, atol=1e-12)


# ---- wrong versions --------------------------------------------------------------------------------------------------

WRONG = {  # what went wrong: (what stands there, what stands there then, what is seen)
    "what a rank has is sent to it": ("to if to in ranks else min", "min", "own ones sent"),
    "the first holder sends everything": ("key=lambda rank: sent[rank]", "key=lambda rank: rank", "uneven"),
    "every holder sends": (
        "copies.append(PlannedCopy(source, to, name, box))",
        "copies += [PlannedCopy(rank, to, name, box) for rank in ranks]",
        "not once",
    ),
    "a box lies at the tensor's beginning": ("inner.start - outer.start", "0", "numbers"),
    "a box lies where the whole has it": ("inner.start - outer.start", "inner.start", "RuntimeError|IndexError"),
    "buffers are in the order of receivers' ranks": (
        "copies if (c.source, c.to) == (source, rank)",
        "copies[::-1] if (c.source, c.to) == (source, rank)",
        "numbers",
    ),
    "what leaves is in the plan's order": (
        "leaving = [c for to in ranks for c in copies if (c.source, c.to) == (rank, to)]",
        "leaving = [c for c in copies if c.source == rank]",
        "numbers",
    ),
    "a tensor has one box": ("rest[name] = rest[name][n:]", "pass", "numbers"),
    "numbers are rounded on the way": ("copy).to(wire)", "copy).float().to(wire)", "numbers"),
    "the last bucket is not sent": (
        "        count += size(copy.box)\n    yield bucket",
        "        count += size(copy.box)",
        "numbers",
    ),
    "a bucket loses the copy that does not fit": (
        "            bucket, count = [], 0\n",
        "            bucket, count = [], 0\n            continue\n",
        "numbers",
    ),
}

SOME = [
    COPIES,
    ("llama", Layout(dp=2, zero=3), Layout(tp=2), True),
    ("gpt2", Layout(tp=2, pp=2), Layout(tp=2, dp=2), False),
    ("llama", Layout(dp=4, zero=3), Layout(tp=4), False),
]


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_version_is_noticed(what):
    old, new, seen = WRONG[what]
    assert re.search(seen, outcome(lesson.changed(SOURCE, old, new)))


def outcome(source):
    """What is wrong with a version of the file: names of faults, or the launcher's report."""
    try:
        found = run(several, source, world_size=4, ranks="threads")
    except RankError as error:
        return str(error)
    seen = [faults([rank[number] for rank in found]) for number in range(len(SOME))]
    copies = seen[0][1][:3]
    uneven = ["uneven"] if max(copies) - min(copies) > LARGEST else []
    return ", ".join([*uneven, *(fault for wrong, _ in seen for fault in wrong)])


def test_the_file_has_none_of_these_faults():
    assert outcome(SOURCE) == ""


def several(group, source):
    return [exchange(group, source, case) for case in SOME]


def test_numbers_that_no_rank_has_are_named():
    have = [[("a", (range(0, 2), range(4)))], []]
    with pytest.raises(ValueError, match="rank 1 wants 16 numbers of a, and unequal boxes have 8 of them"):
        hand_over.plan(have, [[], [("a", (range(4), range(4)))]])
    have[1] = [("a", (range(1, 4), range(4)))]
    with pytest.raises(ValueError, match="have 20 of them"):
        hand_over.plan(have, [[], [("a", (range(4), range(4)))]])


def test_an_overlap_does_not_make_up_for_a_gap():
    have = [[("w", (range(2),))], [("w", (range(1, 3),))]]
    with pytest.raises(ValueError, match="rank 0 wants 4 numbers of w, and unequal boxes have 4 of them"):
        hand_over.plan(have, [[("w", (range(4),))], []])
