"""The cut model against the uncut one: logits, loss, every gradient and parameter, every step."""

import contextlib
import dataclasses
import functools
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import checkpoint

from shardlab import comm, trace
from shardlab.launch import RankError, run
from shardlab.model.details import Details
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import tensor_parallel, transformer
from shardlab.ranks.data_parallel import DataParallel
from shardlab.ranks.observe import ledger
from shardlab.ranks.tensor_parallel import conjugates, shards
from shardlab.sharding import cuts
from tests.rank_types import rank_type
from tests.ranks.tolerance import EXACT

BENCH = Path(__file__).parents[3] / "bench" / "tensor_parallel.py"
STEPS, BATCH, LENGTH = 3, 2, 24  # 24 tokens split over 1, 2, 3, 4 and 8 ranks
SIZES = {"context_length": 32, "hidden_size": 48, "num_layers": 2, "num_heads": 24}
SPECS = {
    "gpt2": TransformerSpec(vocab_size=50, **SIZES),
    "gpt2, head not tied": TransformerSpec(vocab_size=48, **SIZES, tied_head=False),
    "llama": TransformerSpec(vocab_size=49, **SIZES, ffn_size=72, style="llama"),
    "llama, 1 key head, tied head": TransformerSpec(
        vocab_size=17, **SIZES, ffn_size=48, style="llama", num_kv_heads=1, tied_head=True
    ),
    "llama, 2 key heads": TransformerSpec(
        vocab_size=17, **SIZES, ffn_size=48, style="llama", num_kv_heads=2
    ),
    "llama, 12 key heads": TransformerSpec(
        vocab_size=17, **SIZES, ffn_size=48, style="llama", num_kv_heads=12
    ),
    "details": TransformerSpec(
        vocab_size=17,
        **SIZES,
        ffn_size=48,
        style="llama",
        num_kv_heads=2,
        head_dim=4,
        head_norms=True,
        bias_places=("qkv", "out", "ffn"),
        details=Details(pairs="halves", turned=0.5),
    ),
}
WAYS = {
    "tensor": {},
    "sequence": {"sequence_parallel": True},
    "sequence, gathered again": {"sequence_parallel": True, "regather": True},
}
CASES = [
    *((size, name, way) for size in (1, 2, 3, 4) for name in ("gpt2", "llama") for way in WAYS),
    (2, "gpt2, head not tied", "tensor"),
    (2, "llama, 12 key heads", "sequence"),
    (3, "llama, 1 key head, tied head", "sequence, gathered again"),
    (4, "llama, 1 key head, tied head", "tensor"),
    (4, "llama, 2 key heads", "tensor"),
    (4, "llama, 2 key heads", "sequence, gathered again"),
    (2, "details", "tensor"),
    (4, "details", "tensor"),
    (4, "details", "sequence, gathered again"),
    (8, "gpt2", "tensor"),
    (
        8,
        "llama, 2 key heads",
        "sequence",
    ),  # 17 words on 8 ranks: two of them hold nothing but padding
]


def plain(name, **changes):
    """Build a model in float64 with only random parameters: ones and zeros would hide mistakes."""
    torch.manual_seed(0)
    net = transformer.Transformer(dataclasses.replace(SPECS[name], **changes)).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(std=0.2)
    return net


def data(name, step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(SPECS[name].vocab_size, (BATCH, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def optimizer(model):
    """Make an AdamW with a large eps: the gradient of the keys' bias is noise, not to magnify."""
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)


@functools.cache
def alone(name):
    """Return logits, (loss, gradients, their norm) for each step, and the last parameters."""
    model, history = plain(name), []
    adam, logits = optimizer(model), model(data(name, 0)[0]).detach()
    for step in range(STEPS):
        adam.zero_grad()
        loss = model(*data(name, step))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), torch.inf)
        history.append(
            (loss.detach(), {key: p.grad.clone() for key, p in model.named_parameters()}, norm)
        )
        adam.step()
    return logits, history, model.state_dict()


def together(group, name, way):
    """Return the same as `alone`, with the gradients and parameters of this rank's pieces."""
    model, history = tensor_parallel.parallelize(plain(name), group, **WAYS[way]), []
    adam, vocab_size = optimizer(model), SPECS[name].vocab_size
    with torch.no_grad():
        columns = model(data(name, 0)[0])
    logits = conjugates.all_gather(columns, group, -1)[..., :vocab_size]
    for step in range(STEPS):
        adam.zero_grad()
        loss = model(*data(name, step))
        loss.backward()
        norm = tensor_parallel.gradient_norm(model, group)
        history.append(
            (loss.detach(), {key: p.grad.clone() for key, p in model.named_parameters()}, norm)
        )
        adam.step()
    return logits, history, model.state_dict()


@functools.cache
def ranks(size):
    """Run all cases of one world size in one launch: case -> what each rank has seen."""
    cases = [(name, way) for each, name, way in CASES if each == size]
    by_rank = run(lambda group: [together(group, *case) for case in cases], world_size=size, ranks=rank_type(size))
    return {case: [seen[index] for seen in by_rank] for index, case in enumerate(cases)}


def joined(pieces, cut):
    """Join the pieces of all ranks without the library; ranks with the same piece must agree."""
    if cut.dim is None:
        distinct = pieces[:1]
        assert all(torch.equal(pieces[0], piece) for piece in pieces)
        return distinct[0]
    for rank, piece in enumerate(pieces):
        assert torch.equal(piece, pieces[rank - rank % cut.holders])
    return torch.cat(pieces[:: cut.holders], cut.dim).narrow(cut.dim, 0, cut.shape[cut.dim])


def gathered(model, group):
    """The whole parameters of a cut model, on every rank."""
    plan = cuts.model(model.spec, group.size())
    return {key: shards.join(p, plan[key], group) for key, p in model.named_parameters()}


# ---- parity with the uncut model -----------------------------------------------------------------


@pytest.mark.parametrize(("size", "name", "way"), CASES)
@pytest.mark.parity(
    "tensor_parallel",
    "the cut model trains as the uncut one: logits, losses, gradients, parameters",
)
def test_the_cut_model_is_the_uncut_one(size, name, way):
    logits, reference, state = alone(name)
    seen, plan = ranks(size)[name, way], cuts.model(SPECS[name], size)
    for ours, history, _ in seen:
        torch.testing.assert_close(ours, logits, **EXACT)
        for (loss, _, norm), (expected, _, its_norm) in zip(history, reference, strict=True):
            torch.testing.assert_close(loss, expected, **EXACT)
            torch.testing.assert_close(norm, its_norm, rtol=1e-12, atol=0)
    for key, cut in plan.items():
        for step, (_, gradients, _) in enumerate(reference):
            whole, where = (
                joined([history[step][1][key] for _, history, _ in seen], cut),
                f"{key} in step {step}",
            )
            torch.testing.assert_close(
                whole, gradients[key], **EXACT, msg=lambda text, w=where: f"{w}: {text}"
            )
        assert all(tuple(parameters[key].shape) == cut.local_shape for _, _, parameters in seen)
        whole = joined([parameters[key] for _, _, parameters in seen], cut)
        torch.testing.assert_close(
            whole, state[key], **EXACT, msg=lambda text, key=key: f"{key}: {text}"
        )


def test_every_tp_starts_from_the_same_numbers():
    """Every rank draws the whole model and cuts it, so the start does not depend on tp."""

    def start(group):
        torch.manual_seed(3)
        return gathered(tensor_parallel.parallelize(transformer.Transformer(SPECS["gpt2"]), group), group)

    torch.manual_seed(3)
    expected = dict(transformer.Transformer(SPECS["gpt2"]).named_parameters())
    for state in run(start, world_size=3):
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[key], expected[key]) for key in expected)


def gradients(model, name, steps=1):
    for step in range(steps):
        model(*data(name, step)).backward()
    return {key: None if p.grad is None else p.grad.clone() for key, p in model.named_parameters()}


def several_ways_to_use_it(group, name):
    """Return gradients: frozen parameters, accumulation, recomputation."""
    cut = functools.partial(
        tensor_parallel.parallelize, group=group, sequence_parallel=True, regather=True
    )
    frozen = plain(name)
    for key, parameter in frozen.named_parameters():
        parameter.requires_grad_("norm" not in key and "attention.k" not in key)
    again = cut(plain(name))
    for block in again.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return {
        "frozen": gradients(cut(frozen), name),
        "accumulated": gradients(cut(plain(name)), name, steps=2),
        "recomputed": gradients(again, name),
    }


@pytest.mark.parametrize("name", ["gpt2", "llama, 1 key head, tied head"])
def test_frozen_accumulated_and_recomputed(name):
    once, twice, plan = (
        gradients(plain(name), name),
        gradients(plain(name), name, steps=2),
        cuts.model(SPECS[name], 3),
    )
    seen = run(several_ways_to_use_it, name, world_size=3)
    expected = {"accumulated": twice, "recomputed": once, "frozen": once}
    for way, reference in expected.items():
        for key, gradient in reference.items():
            if way == "frozen" and ("norm" in key or "attention.k" in key):
                assert seen[0][way][key] is None
                continue
            whole = joined([each[way][key] for each in seen], plan[key])
            torch.testing.assert_close(
                whole, gradient, **EXACT, msg=lambda text, w=way, k=key: f"{w}, {k}: {text}"
            )


def two_by_two(group):
    """Train two replicas of two ranks each: data parallel across, tensor parallel inside."""
    inside = comm.split(group, 2)
    across = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])[0]
    model = tensor_parallel.parallelize(plain("gpt2"), inside, sequence_parallel=True)
    wrapped = DataParallel(model, across, bucket_bytes=3000)
    tokens, targets = data("gpt2", 0)
    mine = slice(across.rank(), across.rank() + 1)
    wrapped(tokens[mine], targets[mine]).backward()
    return {key: p.grad.clone() for key, p in model.named_parameters()}


@pytest.mark.parity("tensor_parallel", "two replicas of a model cut in two are one model")
def test_data_parallel_replicas_of_a_cut_model():
    reference, plan = gradients(plain("gpt2"), "gpt2"), cuts.model(SPECS["gpt2"], 2)
    seen = run(two_by_two, world_size=4)
    for replica in (seen[:2], seen[2:]):
        for key, gradient in reference.items():
            torch.testing.assert_close(
                joined([each[key] for each in replica], plan[key]), gradient, **EXACT
            )


# ---- parity with torch's parallelize_module ------------------------------------------------------


def bench():
    """Import the module that measures step times: it has torch's plan."""
    sys.path.append(str(BENCH.parent))  # it imports `record` from there
    description = importlib.util.spec_from_file_location("bench_tensor_parallel", BENCH)
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    return module


def beside_torch(group, sequence_parallel):
    """Take three steps of both; return losses, whole parameters, bytes of large messages."""
    theirs = bench().cut_by_torch(plain("llama", vocab_size=48), group, sequence_parallel)
    ours = tensor_parallel.parallelize(
        plain("llama", vocab_size=48), group, sequence_parallel=sequence_parallel
    )
    losses, sent_bytes = [], []
    for model, scope in ((ours, contextlib.nullcontext), (theirs, loss_parallel)):
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with ledger.Ledger() as book:
            for step in range(STEPS):
                sgd.zero_grad()
                with scope():
                    tokens, targets = data("llama", step)
                    loss = model(tokens % 48, targets % 48)
                    loss.backward()
                sgd.step()
                losses.append(loss.item())
        large = [event for event in book.events if event.nbytes >= 8 * BATCH * LENGTH * 48]
        sent_bytes.append({op: row["wire_bytes"] for op, row in trace.totals(large).items()})
    cut = {key: p.detach() for key, p in theirs.named_parameters()}
    whole = {key: p.full_tensor() if hasattr(p, "full_tensor") else p for key, p in cut.items()}
    return losses[:STEPS], losses[STEPS:], gathered(ours, group), whole, sent_bytes


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parity(
    "tensor_parallel", "ours trains as torch's parallelize_module, and sends as many bytes"
)
def test_equals_torchs_parallelize_module(sequence_parallel):
    for ours, theirs, state, whole, sent_bytes in run(
        beside_torch, sequence_parallel, world_size=2
    ):
        assert ours == pytest.approx(theirs, rel=0, abs=1e-12)
        for key, value in whole.items():
            torch.testing.assert_close(
                state[key], value, **EXACT, msg=lambda text, key=key: f"{key}: {text}"
            )
        assert sent_bytes[0] == sent_bytes[1]


# ---- the layers by themselves --------------------------------------------------------------------


def two_layers(group, biased):
    """Compute x -> columns -> rows on pieces of two plain layers: the output and all gradients."""
    first, second, x = layers(biased)
    rank, size = group.rank(), group.size()
    up = first.weight.chunk(size, 0)[rank].detach().requires_grad_()
    down = second.weight.chunk(size, 1)[rank].detach().requires_grad_()
    bias = first.bias.chunk(size)[rank].detach().requires_grad_() if biased else None
    h = tensor_parallel.column_linear(x, up, bias, group)
    y = tensor_parallel.row_linear(torch.tanh(h), down, second.bias, group)
    (y + x).pow(2).sum().backward()  # x passes by, too
    seen = {"y": y.detach(), "x": x.grad, "up": up.grad, "down": down.grad}
    return {**seen, "bias": second.bias.grad} if biased else seen


def layers(biased):
    torch.manual_seed(5)
    first, second = nn.Linear(6, 12, bias=biased).double(), nn.Linear(12, 6, bias=biased).double()
    return first, second, torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)


@functools.cache
def both_layers(size):
    return run(
        lambda group: [two_layers(group, biased) for biased in (False, True)], world_size=size
    )


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parity("tensor_parallel", "a column layer and a row layer are two plain ones")
def test_a_column_and_a_row_layer_are_two_plain_ones(size, biased):
    first, second, x = layers(biased)
    y = second(torch.tanh(first(x)))
    (y + x).pow(2).sum().backward()
    seen = [each[biased] for each in both_layers(size)]
    torch.testing.assert_close(torch.cat([each["up"] for each in seen]), first.weight.grad, **EXACT)
    torch.testing.assert_close(
        torch.cat([each["down"] for each in seen], 1), second.weight.grad, **EXACT
    )
    for each in seen:
        torch.testing.assert_close(each["y"], y.detach(), **EXACT)
        torch.testing.assert_close(each["x"], x.grad, **EXACT)
        if biased:
            torch.testing.assert_close(each["bias"], second.bias.grad, **EXACT)


# ---- what is sent --------------------------------------------------------------------------------


def sent(group, name, num_layers, way):
    """Record what a forward and backward through `num_layers` layers sends, in float64."""
    model = tensor_parallel.parallelize(plain(name, num_layers=num_layers), group, **WAYS[way])
    with ledger.Ledger() as book:
        model(*data(name, 0)).backward()
    return [
        event for event in book.events if event.nbytes >= BATCH * LENGTH * 48
    ]  # not the sums of norms' gradients


def per_layer(group, name, way):
    """Count operations and wire bytes of one layer: what three layers send more than two."""
    two, three = (trace.totals(sent(group, name, layers, way)) for layers in (2, 3))
    return {
        op: {kind: three[op][kind] - two[op][kind] for kind in ("count", "wire_bytes")}
        for op in three
    }


@pytest.mark.parametrize("size", [2, 3])
def test_a_layer_sends_what_is_published(size):
    """4 all-reduces, 8bsh(t-1)/t numbers of 8 bytes here: Narayanan et al. 2021, section 3.2."""
    numbers = 8 * BATCH * LENGTH * 48 * (size - 1) / size
    seen = run(lambda group: {way: per_layer(group, "gpt2", way) for way in WAYS}, world_size=size)
    for ways in seen:
        counts = {
            way: {op: row["count"] for op, row in ways[way].items() if row["count"]} for way in WAYS
        }
        assert counts["tensor"] == {"all_reduce": 4}
        assert counts["sequence"] == {"all_gather": 4, "reduce_scatter": 4}
        assert counts["sequence, gathered again"] == {"all_gather": 6, "reduce_scatter": 4}
        wire = {way: sum(row["wire_bytes"] for row in ways[way].values()) for way in WAYS}
        assert wire["tensor"] == wire["sequence"] == pytest.approx(8 * numbers)
        assert wire["sequence, gathered again"] == pytest.approx(8 * numbers * 10 / 8)


def test_embedding_and_head_send_one_all_reduce_each_and_the_loss_three_numbers_a_token():
    (events, *_) = run(sent_by_the_ends, world_size=2)
    token = 8 * BATCH * LENGTH
    assert [event.nbytes for event in events] == [48 * token, token, 2 * token, 48 * token]


def sent_by_the_ends(group):
    model = tensor_parallel.parallelize(plain("llama"), group)
    model.blocks = nn.ModuleList()
    with ledger.Ledger() as book:
        model(*data("llama", 0)).backward()
    return book.events


# ---- errors --------------------------------------------------------------------------------------


def cut_on(size, spec, **options):
    run(
        lambda group: tensor_parallel.parallelize(transformer.Transformer(spec), group, **options),
        world_size=size,
    )


def test_models_that_do_not_split_are_refused():
    heads = TransformerSpec(
        vocab_size=8, context_length=8, hidden_size=12, num_layers=1, num_heads=4
    )
    with pytest.raises(RankError, match=r"4 heads.* do not split over tp=3; use tp = 1, 2, 4"):
        cut_on(3, heads)
    with pytest.raises(RankError, match=r"ffn=9 do not split over tp=2; use tp = 1"):
        cut_on(2, dataclasses.replace(heads, ffn_size=9))
    with pytest.raises(
        RankError, match=r"3 key/value heads .* do not split over tp=2; use tp = 1, 3, 6"
    ):
        cut_on(2, dataclasses.replace(heads, num_heads=6, num_kv_heads=3))
    with pytest.raises(RankError, match="use it with sequence_parallel=True"):
        cut_on(1, heads, regather=True)


def test_a_sequence_that_does_not_split_is_refused():
    def call(group):
        model = tensor_parallel.parallelize(plain("gpt2"), group, sequence_parallel=True)
        model(torch.zeros(1, 7, dtype=torch.int64))

    with pytest.raises(
        RankError,
        match="sequences of 7 tokens do not split over 2 ranks; pad them to a multiple of 2",
    ):
        run(call, world_size=2)


def test_models_that_differ_between_ranks_are_refused():
    def call(group):
        torch.manual_seed(group.rank())
        tensor_parallel.parallelize(transformer.Transformer(SPECS["gpt2"]), group)

    with pytest.raises(
        RankError, match=r"embedding.tokens.weight differs between ranks.*torch.manual_seed"
    ):
        run(call, world_size=2)
