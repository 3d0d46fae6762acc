"""The plain file of attention without softmax: equal to one process, by bytes that no text makes more."""

import functools
import inspect
import sys

import cloudpickle
import pytest
import torch
from torch.nn.functional import normalize, scaled_dot_product_attention

from shardlab.costs import context_parallel as costs
from shardlab.launch import RankError, run
from shardlab.plain import linear_attention
from shardlab.ranks import transformer
from shardlab.ranks.observe import ledger

from ..rank_types import rank_type
from . import lesson, sequences

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SOURCE = inspect.getsource(linear_attention)
BATCH, HEADS, KEY_HEADS, LENGTH, SIZE = 2, 4, 2, 24, 3


# ---- one process: the definition, token by token ---------------------------------------------------------------------


def one_document(q, k, v, keep, write):
    """Read and write a state: [B, H, S, e]; keep and write are [B, H, S]."""
    state, rows = torch.zeros(*q.shape[:2], q.shape[-1], q.shape[-1], dtype=q.dtype), []
    k = normalize(k, dim=-1)
    for t in range(q.shape[2]):
        state = keep[:, :, t, None, None] * state
        stored = torch.einsum("bhe,bhef->bhf", k[:, :, t], state)
        state = state + torch.einsum("bhe,bhf->bhef", k[:, :, t], write[:, :, t, None] * (v[:, :, t] - stored))
        rows.append(torch.einsum("bhe,bhef->bhf", q[:, :, t], state))
    return torch.stack(rows, dim=2)


def attend(q, k, v, *, lengths):
    """Each document by itself, with the gates of the docstring."""
    outputs = []
    for part in zip(*(x.split(lengths, dim=2) for x in (q, k, v)), strict=True):
        keep = torch.full(part[0].shape[:3], 0.9, dtype=torch.float32).to(q)
        write = 1 - keep
        write[:, :, 0] = 1
        keys = [x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in part[1:]]
        outputs.append(one_document(part[0], *keys, keep, write))
    return torch.cat(outputs, dim=2)


@functools.cache
def alone(style, frozen, lengths):
    positions = torch.cat([torch.arange(length) for length in lengths])

    def prepare(model):
        whole = functools.partial(attend, lengths=lengths)
        transformer.replace(model, attend=whole, locate=lambda _: positions)

    return lesson.alone(style, frozen, length=sequences.LENGTH, prepare=prepare)


def train(group, source, case, **options):
    return sequences.train(group, "linear_attention", source, case, **options)


def everything(group):
    return {case: train(group, SOURCE, case) for case in sequences.CASES}


@pytest.fixture(scope="module", params=lesson.WORLD_SIZES)
def found(request):
    return run(everything, world_size=request.param, ranks=rank_type(request.param))


@pytest.mark.parametrize("case", sequences.CASES, ids=str)
@pytest.mark.parity("context_parallel", "the plain file of linear attention trains like one process: each step")
def test_the_plain_file_equals_one_process(found, case):
    for rank in found:
        lesson.assert_same_training(rank[case], alone(*case))


# ---- gates that differ by token and head, and every gradient ---------------------------------------------------------


def numbers():
    """Queries, keys, values, and gates that depend on sample, head and token; all in float64."""
    torch.manual_seed(0)
    q = torch.randn(BATCH, HEADS, LENGTH, SIZE, dtype=torch.float64)
    k, v = (torch.randn(BATCH, KEY_HEADS, LENGTH, SIZE, dtype=torch.float64) for _ in "kv")
    keep, write = (torch.rand(BATCH, HEADS, LENGTH, dtype=torch.float64) for _ in "kw")
    return [x.requires_grad_() for x in (q, k, v, keep, write)]


def weighted(y):
    """A loss whose gradient differs between all outputs."""
    return (y * torch.arange(y.numel(), dtype=y.dtype).view_as(y).cos()).sum()


def gradients(group, source=SOURCE):
    """This rank's outputs, and the gradients of its parts of the inputs."""
    linear_attention = lesson.load("linear_attention", source)
    inputs = [x.detach().chunk(group.size(), dim=2)[group.rank()].requires_grad_() for x in numbers()]
    y = linear_attention.attend(*inputs, group)
    whole = numbers()[0].shape
    cosines = torch.arange(whole.numel(), dtype=y.dtype).view(whole).cos().chunk(group.size(), 2)[group.rank()]
    (y * cosines).sum().backward()
    return [y.detach(), *(x.grad for x in inputs)]


def gradients_alone():
    """The same of one process, by the definition."""
    q, k, v, keep, write = inputs = numbers()
    y = one_document(q, *(x.repeat_interleave(HEADS // KEY_HEADS, 1) for x in (k, v)), keep, write)
    weighted(y).backward()
    return [y.detach(), *(x.grad for x in inputs)]


@pytest.mark.parametrize("ranks", lesson.WORLD_SIZES)
@pytest.mark.parity("context_parallel", "linear attention with a gate for each token and head: outputs, gradients")
def test_outputs_and_gradients_equal_those_of_the_definition(ranks):
    found = [torch.cat(parts, dim=2) for parts in zip(*run(gradients, world_size=ranks), strict=True)]
    torch.testing.assert_close(found, gradients_alone(), rtol=0, atol=1e-12)


# ---- a window --------------------------------------------------------------------------------------------------------


def window(q, k, v, width, positions, group):
    """Attend by softmax to the last `width` tokens; the rank before has all that is missing."""
    k, v = (linear_attention.with_tokens_before(x, width - 1, group) for x in (k, v))
    back = torch.arange(q.shape[2])[:, None] + width - 1 - torch.arange(k.shape[2])
    seen = (back >= 0) & (back < width) & (back <= positions[:, None])
    return scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)


def windowed(group, width, lengths):
    context = sequences.context_of(group, (None, None, lengths), zig_zag=False)
    q, k, v = (x.detach()[:, :, context.mine].requires_grad_() for x in numbers()[:3])
    y = window(q, k, v, width, context.positions, group)
    whole = numbers()[0].shape
    cosines = torch.arange(whole.numel(), dtype=y.dtype).view(whole).cos()[:, :, context.mine]
    (y * cosines).sum().backward()
    return [y.detach(), q.grad, k.grad, v.grad]


@pytest.mark.parametrize("ranks", lesson.WORLD_SIZES)
@pytest.mark.parametrize("width", [1, 4, 7])
@pytest.mark.parametrize("lengths", [sequences.ONE, sequences.SEVERAL], ids=str)
@pytest.mark.parity("context_parallel", "a sliding window of softmax with one neighbour: outputs, gradients")
def test_a_window_needs_one_neighbour(ranks, width, lengths):
    q, k, v, *_ = numbers()
    documents = sequences.numbers(lengths)
    back = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    seen = (back >= 0) & (back < width) & (documents[:, None] == documents)
    keys = [x.repeat_interleave(HEADS // KEY_HEADS, 1) for x in (k, v)]
    scores = (q @ keys[0].mT / SIZE**0.5).masked_fill(~seen, -torch.inf)
    y = scores.softmax(-1) @ keys[1]
    weighted(y).backward()
    found = run(windowed, width, lengths, world_size=ranks)
    found = [torch.cat(parts, dim=2) for parts in zip(*found, strict=True)]
    torch.testing.assert_close(found, [y.detach(), q.grad, k.grad, v.grad], rtol=0, atol=1e-12)


def test_a_window_longer_than_the_tokens_of_a_rank_is_refused():
    with pytest.raises(RankError, match="a rank has 6 tokens, and 7 are needed before it"):
        run(windowed, 8, sequences.ONE, world_size=4)


# ---- predicted, counted ----------------------------------------------------------------------------------------------


def sent(group, length):
    """Bytes that this rank sends in forward and backward of one layer, in float32."""
    shape = (BATCH, HEADS, length // group.size(), SIZE)
    q, k, v = (torch.ones(shape, requires_grad=True) for _ in range(3))
    gate = torch.full((shape[2],), 0.5)
    with ledger.Ledger() as seen:
        linear_attention.attend(q, k, v, gate, gate, group).sum().backward()
    return lesson.wire_bytes({}, seen)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("length", [12, 24])
@pytest.mark.counted("context_parallel", "bytes of linear attention, which do not grow with the text")
def test_the_bytes_do_not_grow_with_the_text(ranks, length):
    predicted = costs.sent_by_states(HEADS, SIZE, ranks=ranks, batch=BATCH, element=4)
    assert run(sent, length, world_size=ranks) == [predicted] * ranks


# ---- wrong versions --------------------------------------------------------------------------------------------------

WRONG = {  # what went wrong: (what stands there, what stands there then, what the launcher reports)
    "tokens in a zig-zag": ("context_parallel.contiguous(", "context_parallel.zig_zag(", None),
    "every rank begins with nothing": ("of_before @ state_before(state, group) + new", "new + 0 * of_before", None),
    "maps are applied in the wrong order": ("then(earlier, state)", "then(state, earlier)", None),
    "only the map of the rank before": ("while distance < group.size()", "while distance < 1", None),
    "a rank's own map counts twice": ("Shift.apply(state, start, group, 1) ", "state ", None),
    "the last rank's map reaches the first": ("y if is_before else start.clone()", "y", None),
    "documents share a state": ("0.9 * (context.positions > 0) ", "0.9 + 0 * context.positions ", None),
    "the state is not kept when the error is found": ("state = keep[:, :, token, None] * state", "state = state", None),
    "keys of any length": ("normalize(k, dim=-1)", "k", None),
    "gradients go the same way as states": ("to=before, source=after)", "to=after, source=before)", None),
    "gradients of maps that went nowhere": ("dx = torch.zeros_like(dx)", "dx = dx", None),
    "b is not multiplied by the later map": (
        "both: Tensor = m @ first + new",
        "both = torch.stack([m @ first[0], first[1] + b])",
        None,
    ),
}


def right(group, source, case):
    """Tell whether it trains as one process does, and also where a text does not begin with an empty state."""
    trained = all(map(lesson.equal, train(group, source, case), alone(*case)))
    whole = (x.chunk(group.size(), dim=2)[group.rank()] for x in gradients_alone())
    return trained and all(map(torch.allclose, gradients(group, source), whole))


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_version_is_noticed(what):
    old, new, report = WRONG[what]
    found = lesson.verdict(right, lesson.changed(SOURCE, old, new), ("gpt2", False, sequences.SEVERAL))
    assert lesson.noticed(found, report), found
