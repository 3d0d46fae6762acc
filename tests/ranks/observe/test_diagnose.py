"""The tools of a diagnosis find mistakes that we made on purpose."""

import pytest
import torch
from torch import nn

from shardlab import comm, trace
from shardlab.launch import run
from shardlab.ranks.observe import diagnose, ledger

NAN, INF = float("nan"), float("inf")


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()


# ---- on ranks --------------------------------------------------------------------------------------------------------


def consult(group):
    """Run every tool in one launch; return what it finds and what it sent."""
    rank, said, model = group.rank(), {}, net()
    tensors = dict(model.state_dict())
    said["healthy"] = diagnose.differing(tensors, group)
    ill = {name: x.clone() for name, x in tensors.items()}
    if rank == 1:
        ill["3.bias"][1] = torch.nextafter(ill["3.bias"][1], torch.tensor(INF, dtype=torch.float64))  # one bit
        ill["0.weight"] = ill["0.weight"].flip(0)  # the same sum
    if rank == 2:
        ill["2.num_batches_tracked"] += 1
        ill["3.bias"][0] = NAN
    with ledger.Ledger() as book:
        said["differing"] = diagnose.differing(ill, group)
        said["nonfinite"] = diagnose.nonfinite(ill, group)
    said["sent"] = [(event.op, event.nbytes) for event in trace.communication(book.events)]
    said["all finite"] = diagnose.nonfinite(tensors, group)
    said["gathered"] = diagnose.gathered(rank + 0.5, group)
    said["alone"] = diagnose.differing(ill, comm.split(group, 1))
    said["nothing"] = diagnose.differing({}, group)
    return said


@pytest.fixture(scope="module")
def consulted():
    return run(consult, world_size=3)


def test_all_ranks_hear_the_same(consulted):
    assert consulted[0] == consulted[1] == consulted[2]


def test_equal_tensors_do_not_differ(consulted):
    assert consulted[0]["healthy"] == consulted[0]["alone"] == consulted[0]["nothing"] == {}


def sick(group, ranks):
    """Compare a number that is another on `ranks`; return which ranks are named."""
    return diagnose.differing({"x": torch.tensor([1.0 if group.rank() in ranks else 0.0])}, group)


@pytest.mark.parametrize("ranks", [[0], [1], [2]])
def test_the_odd_one_out_is_named_even_if_it_is_rank_0(ranks):
    assert run(sick, ranks, world_size=3) == [{"x": ranks}] * 3


def test_a_single_bit_and_two_exchanged_rows_differ(consulted):
    assert consulted[0]["differing"] == {"0.weight": [1], "2.num_batches_tracked": [2], "3.bias": [1, 2]}


def test_the_rank_with_the_nan_is_named(consulted):
    assert consulted[0]["nonfinite"] == {2: "3.bias"}
    assert consulted[0]["all finite"] == {}


@pytest.mark.counted("failures", "a comparison of all ranks sends eight bytes for each tensor")
def test_a_diagnosis_sends_eight_bytes_a_tensor(consulted):
    names = len(net().state_dict())
    assert consulted[0]["sent"] == [("all_gather", 3 * 8 * names), ("all_gather", 3 * 8)]


def test_numbers_come_in_the_order_of_ranks(consulted):
    assert consulted[0]["gathered"] == [0.5, 1.5, 2.5]


# ---- on one rank -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.cfloat])
def test_a_checksum_is_of_the_bits(dtype):
    x = torch.arange(6).remainder(3).to(dtype).view(2, 3)
    assert diagnose.checksum(x) == diagnose.checksum(x.clone())
    assert diagnose.checksum(x) != diagnose.checksum(x.T.contiguous())
    assert diagnose.checksum(x.T) == diagnose.checksum(x.T.contiguous())  # however it lies in memory


def test_a_checksum_sees_every_bit():
    """It sees a NaN, another NaN, and the sign of a zero, which `==` does not."""
    x = torch.zeros(5, dtype=torch.float64)
    seen = {int(diagnose.checksum(x))}
    for place in range(5):
        for bit in range(64):
            flipped = x.view(torch.int64).clone()
            flipped[place] = -(2**63) if bit == 63 else 1 << bit
            seen.add(int(diagnose.checksum(flipped.view(torch.float64))))
    assert len(seen) == 1 + 5 * 64
    assert int(diagnose.checksum(-x)) != int(diagnose.checksum(x))


def test_outputs_come_in_the_order_of_computing_with_copies():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))

        def forward(self, x):
            return self.inner(self.inner(x))

    model, x = Twice(), torch.ones(1, 2)
    with diagnose.outputs(model) as seen:
        result = model(x)
    assert list(seen) == ["inner.0", "inner.1", "inner", "inner.0 (2)", "inner.1 (2)", "inner (2)"]
    torch.testing.assert_close(seen["inner.0"], model.inner[0](x).detach())  # before the ReLU changed it in place
    torch.testing.assert_close(seen["inner (2)"], result.detach())
    model(x)
    assert len(seen) == 6, "hooks must go"


def test_the_first_module_that_differs_is_named():
    right, wrong = net().eval(), net().eval()
    with torch.no_grad():
        wrong[2].bias += 1e-3
    x, seen = torch.randn(3, 4, dtype=torch.float64), []
    for model in (right, wrong):
        with diagnose.outputs(model) as outputs:
            model(x)
        seen.append(outputs)
    assert diagnose.first_apart(*seen) == "2"
    assert diagnose.first_apart(seen[0], seen[0]) is None
    assert diagnose.first_apart(*seen, tolerance=1.0) is None
    with pytest.raises(ValueError, match=r"none of 0, 1, 2, \.\.\. is in the other run"):
        diagnose.first_apart(seen[0], {"else": x})


def test_how_far_apart():
    right = torch.tensor([1.0, -4.0])
    assert diagnose.apart(right, torch.tensor([1.0, -3.0])) == 0.25
    assert diagnose.apart(torch.zeros(2), torch.tensor([0.0, 0.5])) == 0.5
    assert diagnose.apart(torch.zeros(0), torch.zeros(0)) == 0.0
    for other in (torch.tensor([1.0, NAN]), torch.zeros(3)):
        assert diagnose.apart(right, other) == INF


def test_the_first_tensor_that_is_not_finite():
    model = net()
    assert diagnose.gradients(model) == {}
    model(torch.randn(3, 4, dtype=torch.float64)).sum().backward()
    gradients = diagnose.gradients(model)
    assert diagnose.first_nonfinite(gradients) is None
    model[2].bias.grad[3] = INF
    model[3].bias.grad[0] = NAN
    assert diagnose.first_nonfinite(gradients) == "2.bias"
