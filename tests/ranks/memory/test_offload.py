"""Offloading changes no bit; resident bytes and moved bytes are as predicted."""

import functools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils import checkpoint as torchs

from shardlab.costs.facts import hardware, recipes
from shardlab.costs.memory import offload as predict
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer
from shardlab.ranks.memory import hosted, offload, recompute
from shardlab.ranks.memory.offload import Offload

LAYERS, STEPS = 4, 2
WAYS = ["plain", "prefetch", "files"]


def model(style="gpt2", device="cpu", frozen=False):
    """Put the blocks on the host, and all other modules on the device."""
    torch.manual_seed(0)
    sizes = {"context_length": 16, "hidden_size": 32, "num_layers": LAYERS, "num_heads": 4}
    net = transformer.Transformer(TransformerSpec(vocab_size=32, style=style, **sizes))
    for module in (net.embedding, net.norm, net.head):
        module.to(device)
    if frozen:
        net.blocks[1].requires_grad_(False)
        net.blocks[3].attention.q.weight.requires_grad_(False)
    return net


def options(way, folder):
    return {"plain": {}, "prefetch": {"prefetch": True}, "files": {"folder": folder}}[way]


def text(device="cpu"):
    return torch.randint(32, (4, 17), generator=torch.Generator().manual_seed(1)).to(device)


def train(net, device="cpu", microbatches=2, steps=STEPS):
    """Train, and return gradients, losses and parameters of each step, with an evaluation."""
    optimizer, seen = torch.optim.AdamW(net.parameters(), lr=0.01), []
    for _ in range(steps):
        optimizer.zero_grad()
        for part in text(device).chunk(microbatches):
            net(part[:, :-1], part[:, 1:]).backward()
        seen += [None if p.grad is None else p.grad.clone() for p in net.parameters()]
        optimizer.step()
        with torch.no_grad():
            seen.append(net(text(device)[:, :-1], text(device)[:, 1:]))
        seen += [p.detach().clone() for p in net.parameters()]
    return seen


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for index, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
        assert (mine is None) == (its is None), index
        assert mine is None or torch.equal(mine, its), index


@functools.cache
def resident(style="gpt2", device="cpu", frozen=False):
    return train(model(style, device, frozen).to(device), device)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parity("memory", "a model that is swapped out trains as a resident one, to the bit")
def test_equals_the_resident_model_to_the_bit(style, way, frozen, tmp_path):
    net = model(style, frozen=frozen)
    Offload(net.blocks, **options(way, tmp_path))
    assert_same(train(net), resident(style, frozen=frozen))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("again", ["", "by recompute", "by torch's checkpoint"])
def test_learns_the_same_on_a_gpu(again, way, tmp_path):
    """The optimizer steps on the CPU, whose square roots are rounded differently."""
    net = model(device="cuda")
    recomputed(net, again, "cuda", **options(way, tmp_path))
    for ours, theirs in zip(train(net, "cuda"), resident(device="cuda"), strict=True):
        torch.testing.assert_close(ours.cuda(), theirs, rtol=1e-3, atol=1e-3)


def recomputed(net, again, device="cpu", **options):
    """Offload the blocks of a model, recomputed by one of the two functions or kept."""
    if again == "by recompute":
        recompute.wrap(net.blocks)
    offloaded = Offload(net.blocks, device, **options)
    if again == "by torch's checkpoint":
        for block in net.blocks:
            block.forward = lambda x, forward=block.forward: torchs.checkpoint(forward, x, use_reentrant=False)
    return offloaded


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("again", ["by recompute", "by torch's checkpoint"])
def test_with_recomputation_each_block_is_still_loaded_twice(again, way, tmp_path):
    net = model()
    offloaded = recomputed(net, again, **options(way, tmp_path))
    assert_same(train(net), resident())
    assert offloaded.moved["to device"] == STEPS * (2 * 2 + 1) * sum(p.nbytes for p in net.blocks.parameters())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.counted("memory", "bytes that swapping moves to and from the device")
def test_bytes_moved_are_those_predicted(way, microbatches, tmp_path):
    net = model()
    offloaded = Offload(net.blocks, **options(way, tmp_path))
    for part in text().chunk(microbatches):
        net(part[:, :-1], part[:, 1:]).backward()
    chip = hardware.chip("H100 SXM 80 GB")
    swap = predict.Swap(
        num_parameters=sum(p.numel() for p in net.blocks.parameters()),
        tokens=text()[:, 1:].numel() / microbatches,
        num_microbatches=microbatches,
        chip=chip,
        link=hardware.host_link(chip),
        recipe=recipes.recipe("fp32 Adam"),
    )
    assert offloaded.moved["to device"] == sum(swap.to_chip.values())
    assert offloaded.moved["to host"] == sum(swap.to_host.values())


def test_bytes_moved_without_gradients():
    net = model(frozen=True)
    offloaded = Offload(net.blocks)
    with torch.no_grad():
        net(text()[:, :-1])
    assert offloaded.moved == {"to device": sum(p.nbytes for p in net.blocks.parameters()), "to host": 0}
    net(text()[:, :-1], text()[:, 1:]).backward()
    assert offloaded.moved["to host"] == sum(p.nbytes for p in net.blocks.parameters() if p.requires_grad)


def watch(net, offloaded):
    """Record which blocks are on the device whenever a norm has computed, in forward and in backward."""
    slots, seen = {slot.untyped_storage().data_ptr() for slot in offloaded.slots}, []

    def note(_):
        seen.append(tuple(i for i, b in enumerate(net.blocks) if b.mlp.up.weight.untyped_storage().data_ptr() in slots))

    for block in net.blocks:
        block.mlp_norm.register_forward_hook(lambda _module, _inputs, y: (note(y), y.register_hook(note), y)[-1])
    return seen


@pytest.mark.parametrize("prefetch", [False, True])
def test_one_block_is_on_the_device_and_with_prefetch_another(prefetch):
    net = model()
    offloaded = Offload(net.blocks, prefetch=prefetch)
    largest = max(sum(p.nbytes for p in block.parameters()) for block in net.blocks)
    assert [slot.nbytes for slot in offloaded.slots] == [largest] * (1 + prefetch)
    seen = watch(net, offloaded)
    net(text()[:, :-1], text()[:, 1:]).backward()
    forward, backward = seen[:LAYERS], seen[LAYERS:]
    assert forward == [(index,) for index in range(LAYERS)]
    assert [blocks[0] for blocks in backward] == list(reversed(range(LAYERS)))
    assert max(map(len, backward)) <= 1 + prefetch
    slots = {slot.untyped_storage().data_ptr() for slot in offloaded.slots}
    for block in net.blocks:  # at home, each block's parameters lie together, and its gradients
        for tensors in (list(block.parameters()), [p.grad for p in block.parameters()]):
            (storage,) = {tensor.untyped_storage().data_ptr() for tensor in tensors}
            assert storage not in slots


def test_modules_of_unequal_size_and_dtype():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7).double(), nn.BatchNorm1d(7).double(), nn.Linear(7, 1))

    def step(net):
        h = net[0](torch.ones(4, 3)).double()
        net[3](net[2](net[1](h)).float()).square().sum().backward()
        return [p.grad.clone() for p in net.parameters()]

    net = make()
    offloaded = Offload(net, prefetch=True)
    assert [slot.nbytes for slot in offloaded.slots] == [8 * (5 * 7 + 7)] * 2
    assert_same(step(net), step(make()))


class Late(ThreadPoolExecutor):
    """An executor whose copies arrive late, when code that does not wait has gone on."""

    def submit(self, function, *arguments):
        return super().submit(lambda: (time.sleep(0.02), function(*arguments)))


def test_a_prefetched_block_is_waited_for(monkeypatch):
    monkeypatch.setattr(hosted, "ThreadPoolExecutor", Late)
    net = model()
    Offload(net.blocks, prefetch=True)
    assert_same(train(net), train(model()))


def test_an_outdated_prefetch_is_not_used():
    """Forward stops after the second block; the third is on the device, and outdated after the step."""
    ours, theirs = model(), model()
    Offload(ours.blocks, prefetch=True)
    x, results = torch.ones(1, 16, 32), []
    for net in (ours, theirs):
        with torch.no_grad():
            net.blocks[1](net.blocks[0](x))
            for parameter in net.blocks[2].parameters():
                parameter += 0.01
            results.append(net.blocks[2](x))
    assert torch.equal(*results)


def test_the_next_block_is_on_its_way_while_one_computes(monkeypatch):
    net, log = model(), []

    def copy(device):
        def start(source, target, add):
            hosted.at_once(source, target, add)
            if (name := names.get(source.data_ptr())) is None:
                return lambda: log.append("a gradient has left")
            return log.append(name) or (lambda: None)

        return start

    monkeypatch.setattr(offload, "in_background", copy)
    Offload(net.blocks, prefetch=True)
    names = {block.attention_norm.weight.untyped_storage().data_ptr(): n for n, block in enumerate(net.blocks)}
    for block in net.blocks:
        block.mlp_norm.register_forward_hook(lambda _module, _inputs, y: (log.append("forward"), y)[1])
        block.mlp_norm.register_full_backward_hook(lambda *_: log.append("backward"))
    net(text()[:, :-1], text()[:, 1:]).backward()
    left = "a gradient has left"
    told = [each for each in log if each != left]
    assert told[: 2 * LAYERS] == [0, 1, "forward", 2, "forward", 3, "forward", "forward"]
    assert told[2 * LAYERS :] == [3, 2, "backward", 1, "backward", 0, "backward", "backward"]
    one = len([*net.blocks[0].parameters()])
    # the gradients of a block may leave while the next block computes, and are waited for after that
    assert [log[:place].count(left) for place, each in enumerate(log) if each == "backward"] == [0, 0, one, 2 * one]
    assert log.count(left) == LAYERS * one


def test_a_penalty_computed_on_the_host_counts():
    gradients = []
    for offloaded in (False, True):
        net = model()
        if offloaded:
            Offload(net.blocks)
        for part in text().chunk(2):
            penalty = sum(p.square().sum() for p in net.blocks.parameters())
            (net(part[:, :-1], part[:, 1:]) + penalty).backward()
        gradients.append([p.grad for p in net.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)  # the two parts may add up in another order


def test_a_failed_forward_brings_everything_home():
    net = model()
    Offload(net.blocks, prefetch=True)
    handle = net.blocks[3].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        net(text()[:, :-1])
    handle.remove()
    assert_same(train(net), resident())


def test_files_hold_what_was_learned(tmp_path):
    net = model()
    Offload(net.blocks, folder=tmp_path)
    train(net, steps=1)
    written = torch.from_file(str(tmp_path / "2.bin"), size=sum(p.numel() for p in net.blocks[2].parameters()))
    assert torch.equal(written, torch.cat([p.detach().flatten() for p in net.blocks[2].parameters()]))


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_step_during_backward_is_noticed():
    net = model()
    Offload(net.blocks)
    weight = net.blocks[2].mlp.up.weight

    def step(_):
        weight.detach().zero_()

    weight.register_hook(step)
    with pytest.raises(RuntimeError, match="changed while it was on the device; step the optimizer after backward"):
        net(text()[:, :-1], text()[:, 1:]).backward()


def test_modules_that_cannot_be_offloaded_alone_are_refused():
    layer = nn.Linear(2, 2)
    for modules, message in [
        ([layer, layer], "module 1 shares a parameter with an earlier one; offload them as one module"),
        ([layer, nn.ReLU()], "module 1 has parameters of 0 dtypes; offload modules that have one"),
        ([nn.Sequential(layer, nn.Linear(2, 2).half())], "module 0 has parameters of 2 dtypes"),
    ]:
        with pytest.raises(ValueError, match=message):
            Offload(modules)
