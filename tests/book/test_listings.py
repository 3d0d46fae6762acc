"""The book's listings of torch's own API, each run on two ranks: they train the model that one process trains."""

from __future__ import annotations

import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from shardlab import comm, launch
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer
from shardlab.ranks.observe import ledger

from .conftest import ROOT

SPEC = TransformerSpec(vocab_size=32, context_length=8, hidden_size=16, num_layers=2, num_heads=2)
TOKENS = torch.randint(32, (4, 9), generator=torch.Generator().manual_seed(1))
PAGES = ("data_parallel", "memory", "pipeline", "zero", "context_parallel")


def listings(page: str) -> list[str]:
    """The listings of a page that are no cells."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "book" / f"{page}.md").read_text(), re.M | re.S)


def fresh() -> transformer.Transformer:
    torch.manual_seed(0)
    return transformer.Transformer(SPEC)


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters as they are on this rank, with the shards of others."""
    return {
        name.removeprefix("module."): (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().clone()
        for name, x in model.named_parameters()
    }


def trained(model: nn.Module, tokens: torch.Tensor, steps: int = 3) -> dict[str, torch.Tensor]:
    """The parameters after a few steps of gradient descent."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
    return whole(model)


def on_rank(group: Any, pages: dict[str, list[str]], folder: str) -> dict[str, dict[str, torch.Tensor]]:
    """What each listing has trained on this rank."""
    mesh = DeviceMesh.from_group(group, comm.device(group).type)
    mine = TOKENS[2 * group.rank() :][:2]
    (program,) = pages["data_parallel"]
    (shard,) = pages["zero"]
    results = {}
    names = {"torch": torch, "group": group, "mesh": mesh, "model": fresh()}
    exec(shard, names)
    results["FSDP2"] = trained(names["model"], mine)
    for before, after in (
        ('"model.pt"', f"{folder!r} + '/model.pt'"),
        (r"distributed\.(init|destroy)_process_group\(.*\)", ""),  # the group is here already
    ):
        program = re.sub(before, after, program)
    names = {}
    exec(program, names)
    results["a program"] = whole(names["model"].module)
    stage_gradients(pages["pipeline"][0], group)
    with pytest.raises(NotImplementedError, match="does not have a sharding strategy"):
        context(pages["context_parallel"][0], mesh)
    return results


def stage_gradients(listing: str, group: Any) -> None:
    """A stage has the gradients of one process."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    alone, inputs, loss = deepcopy(layers), torch.randn(8, 8), nn.functional.mse_loss
    names = {"torch": torch, "part": layers[group.rank()], "rank": group.rank(), "num_stages": 2}
    names |= {"device": comm.device(group), "num_microbatches": 4, "loss_fn": loss}
    exec(listing, names | {"tokens": inputs, "targets": inputs})
    loss(alone(inputs), inputs).backward()
    for ours, theirs in zip(layers[group.rank()].parameters(), alone[group.rank()].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def context(listing: str, mesh: DeviceMesh) -> None:
    """Attention in the listing for GPUs; the page says that the kernel of CPUs fails."""

    def model(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = tokens.float().view(2, 1, -1, 1).expand(-1, -1, -1, 8).contiguous().requires_grad_()
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True).sum()

    names = {"torch": torch, "mesh": mesh, "model": model, "tokens": torch.ones(2, 8), "targets": torch.ones(2, 8)}
    exec(listing, names)


def gathers(group: Any, after_forward: bool, after_backward: bool) -> list[int]:
    """All-gathers of `fully_shard` in each of three microbatches, where it cuts after forward and after backward."""
    model = fresh()
    mesh = DeviceMesh.from_group(group, comm.device(group).type)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=after_forward)
    model.set_reshard_after_backward(after_backward)
    counts = []
    for _ in range(3):
        with ledger.Ledger() as book:
            model(TOKENS[:, :-1], TOKENS[:, 1:]).backward()
        counts.append(sum("gather" in str(event) for event in book.events))
    return counts


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, torch.Tensor]]]:
    """What two ranks have trained, in one launch."""
    pages = {page: listings(page) for page in PAGES}
    return launch.run(on_rank, pages, str(tmp_path_factory.mktemp("listings")), world_size=2)


def test_ranks_train_the_same_model_as_one_process(ranks: list[dict[str, dict[str, torch.Tensor]]]) -> None:
    for parameter, alone in trained(fresh(), TOKENS).items():
        first, second = (rank["FSDP2"][parameter] for rank in ranks)
        assert torch.equal(first, second), parameter
        torch.testing.assert_close(first, alone, atol=5e-3, rtol=0)  # it computes in 16 bits


@pytest.mark.parametrize(
    ("after_forward", "after_backward", "counts"),
    [(True, True, [6, 6, 6]), (True, False, [6, 3, 3]), (False, True, [3, 3, 3]), (False, False, [3, 0, 0])],
)
def test_parameters_whole_after_backward_save_the_gathers_of_the_next_forward(
    after_forward: bool, after_backward: bool, counts: list[int]
) -> None:
    """ZeRO, "Microbatches change the bill": two blocks and the root."""
    found = launch.run(gathers, after_forward, after_backward, world_size=2)
    assert found[0] == counts


def test_the_program_of_data_parallelism_starts_under_torchrun(tmp_path: Path) -> None:
    """With its own `init_process_group`, which the ranks of the other tests have behind them."""
    (program,) = listings("data_parallel")
    (tmp_path / "script.py").write_text(program)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    done = subprocess.run(torchrun, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert torch.load(tmp_path / "model.pt").keys() == {"weight", "bias"}


def test_the_program_of_data_parallelism_keeps_its_ranks_equal(ranks: list[dict[str, dict[str, torch.Tensor]]]) -> None:
    first, second = (rank["a program"] for rank in ranks)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_recomputation_and_loss_scaling_give_the_gradient_of_a_plain_step() -> None:
    """On a machine without a GPU the scaler does nothing."""
    torch.manual_seed(0)
    block, x = nn.Linear(8, 8), torch.randn(4, 8)
    alone = deepcopy(block)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    names = {"torch": torch, "block": block, "x": x, "optimizer": optimizer}
    (listing,) = listings("memory")
    recompute, scale = listing.split("\n", 1)
    exec(recompute, names)
    names["loss"] = names["x"].square().mean()
    exec(scale, names)
    alone(x).square().mean().backward()
    torch.testing.assert_close(block.weight.grad, alone.weight.grad)
    torch.testing.assert_close(block.weight, alone.weight - 0.1 * alone.weight.grad)


def test_no_listing_is_left_out() -> None:
    """A page with a new listing of torch's API belongs into PAGES."""
    assert {path.stem for path in (ROOT / "book").glob("*.md") if listings(path.stem)} == set(PAGES)
