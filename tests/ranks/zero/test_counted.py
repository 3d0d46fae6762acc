"""Predicted bytes equal counted ones: what a rank holds and sends at each of ZeRO's stages."""

import contextlib
import gc
from fractions import Fraction

import pytest
import torch

from shardlab import trace
from shardlab.costs import memory
from shardlab.costs import zero as costs
from shardlab.costs.facts import recipes
from shardlab.costs.training import Training
from shardlab.launch import run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer, zero
from shardlab.ranks.data_parallel import DataParallel
from shardlab.ranks.observe import ledger
from shardlab.sharding.layout import Layout

SIZES = {"vocab_size": 331, "context_length": 9, "hidden_size": 26, "num_layers": 4, "num_heads": 1}
SPECS = {style: TransformerSpec(**SIZES, style=style) for style in ("gpt2", "llama")}
RECIPES = {  # how the module is made, and what it is sharded with
    "fp32 Adam": (torch.float32, {}),
    "mixed, 16-bit gradients": (torch.float32, {"precision": torch.bfloat16}),
    "mixed, fp32 gradients": (
        torch.float32,
        {"precision": torch.bfloat16, "gradients": torch.float32},
    ),
}
CASES = [  # style, recipe, stage, microbatches, hold
    (style, recipe, stage, microbatches, hold)
    for stage in (1, 2, 3)
    for style, recipe, microbatches, hold in [
        ("gpt2", "fp32 Adam", 1, False),
        ("gpt2", "mixed, 16-bit gradients", 3, False),
        ("llama", "mixed, fp32 gradients", 3, True),
    ]
    if (stage, recipe) != (1, "mixed, fp32 gradients")  # whole gradients have the parameters' dtype
]


def training(group_size, style, recipe, stage, microbatches):
    return Training(
        spec=SPECS[style],
        layout=Layout(dp=group_size, zero=stage),
        recipe=recipes.recipe(recipe),
        num_microbatches=microbatches,
    )


def alive():
    """Count the bytes of all floating-point storages on this rank, but for scalars."""
    gc.collect()
    tensors = [
        x for x in gc.get_objects() if issubclass(type(x), torch.Tensor) and x.is_floating_point()
    ]
    storages = {
        x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors if x.dim()
    }
    small = {
        x.untyped_storage()._cdata
        for x in tensors
        if x.untyped_storage().nbytes() <= x.element_size()
    }
    return sum(nbytes for address, nbytes in storages.items() if address not in small)


class Peaks:
    """The peak bytes of gathered parameters and of gradient buffers."""

    def __init__(self, model, states):
        self.states, self.parameters, self.gradients = states, 0, 0
        for module in model.modules():
            module.register_forward_hook(self._note)
            module.register_full_backward_hook(self._note)
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._note)

    def _note(self, *_):
        whole = sum(
            flat.whole.untyped_storage().nbytes() for flat in self.states.flats if flat.sharded
        )
        waiting = [each._buffer for each in self.states.gradients if each._buffer is not None]
        self.parameters = max(self.parameters, whole)
        self.gradients = max(self.gradients, sum(buffer.nbytes for buffer in waiting))


def count(group, style, recipe, stage, microbatches, hold):
    """Count bytes in the second step: held before the optimizer steps, at the peaks, and sent."""
    dtype, options = RECIPES[recipe]
    before = alive()
    model = transformer.Transformer(SPECS[style]).to(dtype)
    states = zero.shard(model, group, stage=stage, optimizer=torch.optim.Adam, **options)
    peaks = Peaks(model, states)
    tokens = torch.randint(SIZES["vocab_size"], (2, 9))
    for step in range(2):
        states.zero_grad()
        with ledger.Ledger() as book:
            for number in range(microbatches):
                last = number == microbatches - 1
                with contextlib.nullcontext() if last or not hold else states.no_sync():
                    transformer.loss(model(tokens).float(), tokens).backward()
            held, total = states.nbytes(), alive() - before if step else 0
            whole = [flat for flat in states.flats if flat.sharded and flat.is_whole]
            states.step()
        after = states.nbytes()["parameters"]
    events = trace.communication(book.events)
    sent = (
        sum(map(trace.wire_bytes, events)),
        book.sent_bytes,
        sum(event.op == "reduce_scatter" for event in events),
    )
    return held, total, (peaks.parameters, peaks.gradients), sent, len(whole), after


def all_cases(group):
    return [count(group, *case) for case in CASES]


@pytest.fixture(scope="module", params=[2, 3])
def counted(request):
    return request.param, run(all_cases, world_size=request.param)


@pytest.mark.parametrize("number", range(len(CASES)), ids=map(str, CASES))
@pytest.mark.counted("zero", "bytes that a rank holds at each stage")
def test_memory_of_each_stage(counted, number):
    ranks, results = counted
    setting = training(ranks, *CASES[number][:4])
    predicted, unpadded, padding = (
        costs.states(setting),
        memory.states(setting),
        costs.padding(setting),
    )
    for rank in results:
        held, total, _, _, still_whole, after = rank[number]
        assert held == pytest.approx(predicted, abs=0.5)  # a share of a byte is none
        assert total == sum(held.values())
        assert still_whole == 0
        assert after == held["parameters"]
    for part, nbytes in unpadded.items():
        assert nbytes <= predicted[part] <= nbytes + getattr(setting.recipe, part) * padding
    assert ranks == 2 or padding > 0


@pytest.mark.parametrize("number", range(len(CASES)), ids=map(str, CASES))
@pytest.mark.counted("zero", "bytes that are whole for a moment")
def test_what_is_whole_for_a_moment(counted, number):
    ranks, results = counted
    stage, predicted = (
        CASES[number][2],
        costs.whole_for_a_moment(training(ranks, *CASES[number][:4])),
    )
    for rank in results:
        parameters, gradients = rank[number][2]
        assert parameters == predicted["parameters"]
        if stage > 1:
            assert gradients == predicted["gradients"]


@pytest.mark.parametrize("number", range(len(CASES)), ids=map(str, CASES))
@pytest.mark.counted("zero", "bytes that a rank sends at each stage")
def test_what_a_rank_sends(counted, number):
    """The ledger counts exactly as predicted; sockets carry the headers of messages as well."""
    ranks, results = counted
    setting, hold = training(ranks, *CASES[number][:4]), CASES[number][4]
    predicted = sum(costs.sent_bytes(setting, hold=hold).values())
    for rank in results:
        wire, sockets, of_gloo = rank[number][3]
        assert wire == pytest.approx(predicted, abs=1e-6)
        assert of_gloo == 0
        assert sockets is None or predicted <= sockets < 1.06 * predicted


# ---- against data parallelism --------------------------------------------------------------------

EVERY = [(1, 1), (2, 1), (3, 1), (1, 4), (2, 4), (3, 4)]  # stage, microbatches


def against_data_parallel(group):
    """Divide each stage's sent bytes by DataParallel's; all parameters are gathered twice."""
    tokens = torch.randint(SIZES["vocab_size"], (1, 9))

    def sent(model, step, microbatches, no_sync):
        with ledger.Ledger() as book:
            for number in range(microbatches):
                with no_sync() if number < microbatches - 1 else contextlib.nullcontext():
                    model(tokens, tokens).backward()
            step()
        return Fraction(round(sum(map(trace.wire_bytes, book.events)) * group.size()))

    def make():
        return transformer.Transformer(SPECS["llama"])

    plain = DataParallel(make(), group)
    base = sent(plain, lambda: None, 1, plain.no_sync)
    ratios = []
    for stage, microbatches in EVERY:
        model = make()
        layers = [model.embedding, *model.blocks, model.norm, model.head]
        states = zero.shard(model, group, stage=stage, optimizer=torch.optim.Adam, layers=layers)
        stay = contextlib.nullcontext if stage > 1 else states.no_sync
        ratios.append(sent(model, states.step, microbatches, stay) / base)
    return ratios


@pytest.mark.counted("zero", "1, 1 and 1.5 times the bytes of data parallelism")
def test_one_one_and_one_and_a_half_times_data_parallelism():
    for ratios in run(against_data_parallel, world_size=2):
        assert ratios == [1, 1, Fraction(3, 2), 1, Fraction(5, 2), 6]
