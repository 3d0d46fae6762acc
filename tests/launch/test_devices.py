"""The device of a rank's tensors: its arguments, those that it makes, its results; on CPU, GPU and a second device."""

import importlib
import math
import os
import random
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn

from shardlab import comm, launch
from shardlab.launch import RankError, run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import data_parallel, text, transformer
from shardlab.ranks.data_parallel import averaging, sampler
from shardlab.ranks.observe import ledger
from tests.ranks.second_device import as_on_gpus

join = importlib.import_module("shardlab.launch.join")  # the package's `join` is its function
README = Path(__file__).parents[2] / "README.md"
SPEC = TransformerSpec(
    vocab_size=256, context_length=16, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, style="llama"
)

# ---- a rank has one device ------------------------------------------------------------------------------------------


def notebook():
    """Define a cell's function, its variables and its arguments to `run`, as they would be in __main__."""
    cell = {"__name__": "__main__", "torch": torch, "nn": nn, "comm": comm, "used": torch.arange(3.0)}
    cell["net"] = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    cell["net"][1].weight = cell["net"][0].weight
    exec(
        """
def work(group, given):
    x, (y, z) = given["x"], given["more"]
    made = torch.ones(3) + torch.tensor([1.0, 2.0, 3.0]) + nn.Linear(3, 3)(x)
    everything = [used, x, y, z, made, net(x)]
    here = comm.device(group)
    assert all(each.device == here for each in everything), [each.device for each in everything]
    assert net[0].weight is net[1].weight and net[0].weight.is_leaf
    assert here.type == "cpu" or type(z) is not torch.Tensor
    return {"sum": comm.all_reduce(used + x + y + z, group), "nested": [(made.detach(),)], "device": str(here)}
""",
        cell,
    )
    return cell["work"], {"x": torch.ones(3), "more": [torch.full((3,), 2.0), torch.zeros(3)]}


def test_arguments_new_tensors_and_results_are_on_the_right_device():
    work, given = notebook()
    for mine in run(as_on_gpus(work), given, world_size=2):
        assert mine["sum"].tolist() == [6.0, 8.0, 10.0]
        assert mine["device"] == "lazy:0"
        assert {mine["sum"].device.type, mine["nested"][0][0].device.type} == {"cpu"}
        assert type(mine["nested"][0][0]) is torch.Tensor
    assert run(work, given, world_size=1)[0]["device"] == "cpu"


FORGETFUL = {
    "mixes": lambda group, x: x + torch.ones(3, device="cpu"),
    "sends": lambda group, x: comm.all_reduce(torch.ones(3, device="cpu"), group),
    "sends a number": lambda group, x: comm.all_reduce(torch.tensor(1.0, device="cpu"), group),
    "draws": lambda group, x: torch.rand(3, generator=torch.Generator()),
    "brings home": lambda group, x: comm.all_reduce(x.cpu(), group),
    "keeps a layer": lambda group, x: nn.Linear(3, 3, device="cpu")(x),
    "wraps": lambda group, x: data_parallel.DataParallel(nn.Linear(3, 3, device="cpu"), group).training,
    "goes back": lambda group, x: hooked(x, lambda gradient: gradient * torch.ones(3)),  # on a thread of its own
}


def hooked(x, hook):
    y = x.requires_grad_() * 2
    y.register_hook(hook)
    y.sum().backward()
    return x.grad


@pytest.mark.parametrize("way", FORGETFUL)
def test_a_forgotten_device_fails_only_on_the_second_one(way):
    run(FORGETFUL[way], torch.ones(3), world_size=1)
    with pytest.raises(RankError, match=r"second device|two devices|talks from|communicates from"):
        run(as_on_gpus(FORGETFUL[way]), torch.ones(3), world_size=1)


def train(group, corpus):
    """Train four steps with everything that data parallelism has; return losses and parameters."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(group.rank())
    model = data_parallel.DataParallel(transformer.Transformer(SPEC), group, bucket_bytes=20_000, find_unused=True)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for indices, weight in sampler.epoch(27, 8, group.rank(), group.size()):
        optimizer.zero_grad()
        with ledger.Ledger() as book:
            loss = weight * model(*text.batch(corpus, indices, length=16))
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(averaging.mean(loss.detach(), group).item())
    assert any(event.op == "all_reduce" for event in book.events)
    return losses, [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("world_size", [1, 3])
def test_training_is_the_same_on_a_second_device(world_size):
    corpus = torch.arange(27 * 16 + 1).mul(37).remainder(251).to(torch.uint8)
    there, here = (run(fn, corpus, world_size=world_size) for fn in (as_on_gpus(train), train))
    assert len(here[0][0]) == 4
    for mine, its in zip(there, here, strict=True):
        assert mine[0] == pytest.approx(its[0], abs=1e-12)
        for a, b in zip(mine[1], its[1], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_text_is_read_onto_the_device_of_new_tensors():
    with torch.device("meta"):
        assert text.read().device.type == "meta"


def test_the_readme_s_first_example_prints_what_it_says(capsys):
    example = README.read_text().split("```python\n")[1].split("```")[0]
    exec(example, {"__name__": "__main__"})
    assert capsys.readouterr().out.strip() == example.rpartition("# ")[2].strip()


def test_the_readme_s_script(capsys):
    """It works as `python train.py` would run it, and on a second device."""
    script = README.read_text().split("# train.py\n")[1].split("```")[0]
    assert "(train, 10," in script
    names = {"__name__": "__main__"}
    exec(script.replace("(train, 10,", "(train, 2,"), names)
    losses = eval(capsys.readouterr().out.removeprefix("nats a byte, from 5.5: "))
    assert len(losses) == 4
    assert len(set(losses)) == 4, "every rank reads other samples"
    assert all(loss < math.log(256) for loss in losses), "it learns"
    assert run(as_on_gpus(names["train"]), 1, world_size=2)


# ---- a rank that joins is like one that was just started ------------------------------------------------------------


def inside(fn, *args, world_size=2):
    """Run fn on ranks that join, and return what each got."""
    return run(lambda group: run(fn, *args, world_size=group.size())[group.rank()], world_size=world_size)


def test_ranks_that_join_draw_different_numbers_and_restore_the_random_states():
    def draw(group):
        torch.set_default_dtype(torch.float64)
        return torch.rand(1).item(), random.random(), numpy.random.rand()  # noqa: NPY002

    def twice(group):
        torch.manual_seed(0)
        numpy.random.seed(0)  # noqa: NPY002
        random.seed(0)
        drawn = run(draw, world_size=2) + run(draw, world_size=2)
        return drawn, draw(group), torch.get_default_dtype()

    torch.manual_seed(0)
    ((drawn, after, _), (again, other, _)) = run(twice, world_size=2)
    assert drawn == again
    for column in zip(*drawn, strict=True):
        assert len(set(column)) == 4
    assert after == other  # as seeded: the runs in between took nothing


def test_what_a_rank_changes_stays_on_the_rank():
    """Ranks get copies, wherever they run; only what they return comes back."""

    def change(group, given):
        given.append(1)
        return given

    def twice(group):
        mine = []
        return run(change, mine, world_size=2), mine

    assert run(twice, world_size=2) == [([[1], [1]], [])] * 2


def test_a_result_that_cannot_be_sent_back():
    with pytest.raises(RankError, match="returned a generator, which cannot be sent back"):
        inside(lambda group: (x for x in ()))


# ---- on GPUs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    """Return a function that makes this process a rank of torchrun on a machine with GPUs, and records its calls."""
    asked = SimpleNamespace()

    def make(gpus, ranks, **environment):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(asked, "current", device))
        monkeypatch.setattr(dist, "init_process_group", lambda backend, **o: vars(asked).update(o, backend=backend))
        monkeypatch.setattr(join.ending, "leave_at_the_end", lambda groups: None)
        told = {"RANK": "1", "WORLD_SIZE": str(ranks), "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": str(ranks)} | environment
        monkeypatch.setattr(os, "environ", {name: value for name, value in told.items() if value})
        return asked

    return make


def test_every_rank_has_a_gpu_of_its_own_and_uses_nccl(machine):
    asked = machine(gpus=4, ranks=2)
    join._initialise(60.0)
    assert asked.backend == "nccl"
    assert asked.device_id == asked.current == torch.device("cuda", 1)
    assert asked.timeout.total_seconds() == 60.0
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_without_gpus_ranks_use_gloo_on_the_loopback_interface(machine):
    asked = machine(gpus=0, ranks=2)
    join._initialise(60.0)
    assert (asked.backend, asked.device_id) == ("gloo", None)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"


def test_ranks_of_several_machines_do_not_use_the_loopback_interface(machine):
    machine(gpus=0, ranks=2, WORLD_SIZE="4")
    join._initialise(60.0)
    assert "GLOO_SOCKET_IFNAME" not in os.environ


@pytest.mark.parametrize(
    ("gpus", "told", "message"),
    [
        (1, {}, "8 ranks on this machine, but each sees 1 GPU; start at most 1 here"),
        (4, {}, "each sees 4 GPUs; start at most 4 here.*CUDA_VISIBLE_DEVICES= to use the CPU"),
        (4, {"LOCAL_RANK": ""}, "RANK is set, but not LOCAL_RANK; start the ranks with torchrun or .*unset RANK"),
    ],
)
def test_ranks_that_would_share_a_gpu_or_do_not_know_theirs_are_refused(machine, gpus, told, message):
    machine(gpus, 8, **told)
    with pytest.raises(ValueError, match=message):
        join._initialise(60.0)


def test_the_device_follows_the_backend_of_the_group(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    for language, device in (("nccl", torch.device("cuda", 3)), ("gloo", torch.device("cpu"))):
        monkeypatch.setattr(dist, "get_backend", lambda group, language=language: language)
        assert comm.device(None) == device


def test_bytes_sent_by_nccl_are_not_counted_at_the_sockets():
    def sent(group, language):
        dist.get_backend = lambda group=None: language
        with ledger.Ledger() as book:
            comm.all_reduce(torch.ones(1000), group)
        return book.sent_bytes

    assert run(sent, "nccl", world_size=2) == [None, None]
    assert all(nbytes is None or nbytes > 4000 for nbytes in run(sent, "gloo", world_size=2))


def test_a_run_may_have_fewer_ranks_than_were_started():
    with pytest.raises(RankError, match="only 2 ranks were started"):
        inside(lambda group: launch.run(lambda group: None, world_size=3))
