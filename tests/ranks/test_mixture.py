"""A mixture on one process computes what a loop over tokens and experts says, by every rule, and evens out its load."""

import copy
import dataclasses

import pytest
import torch
from torch.nn import functional as F

from shardlab.model.experts import BALANCES, CHOICES, Experts
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import mixture, transformer
from shardlab.ranks.memory.recompute import checkpoint

RULES = Experts(num_experts=5, per_token=2, expert_size=6)
HIDDEN, SHAPE = 8, (3, 7, 8)


def make(**changes):
    torch.manual_seed(0)
    made = mixture.Mixture(HIDDEN, dataclasses.replace(RULES, **changes)).double()
    torch.nn.init.normal_(made.router.weight)
    return made


def inputs():
    return torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)


def swiglu(block, x):
    return (F.silu(x @ block.gate.weight.T) * (x @ block.up.weight.T)) @ block.down.weight.T


def by_loops(made, x):
    """Token after token: the output, and what the balance loss is made of."""
    rules, (load, shares, taken) = made.rules, torch.zeros(3, 5).double()
    flat, results = x.flatten(0, 1), []
    for token in flat:
        scores = made.router.weight @ token
        share = torch.sigmoid(scores) if rules.choose == "sigmoid" else torch.softmax(scores, 0)
        wanted = share.detach() + (0 if made.bias is None else made.bias)
        chosen = sorted(range(5), key=lambda e: (-wanted[e], e))[: rules.per_token]
        weights = share[chosen]
        if rules.choose != "softmax before":
            weights = weights / weights.sum()
        y = swiglu(made.shared, token) if made.shared else torch.zeros_like(token)
        for expert, weight in zip(chosen, weights, strict=True):
            load[expert] += 1
            if taken[expert] < rules.slots(len(flat)):
                taken[expert] += 1
                y = y + weight * swiglu(made.experts[str(expert)], token)
        shares = shares + share / share.sum() / len(flat)
        results.append(y)
    return torch.stack(results).view_as(x), 5 * (load / load.sum() * shares).sum() * rules.loss_weight


EVERY = [
    {"choose": choose, "balance": balance, "capacity": capacity, "num_shared": shared}
    for choose in CHOICES
    for balance in BALANCES
    for capacity, shared in [(None, 0), (1.0, 2)]
]


@pytest.mark.parametrize("changes", EVERY, ids=str)
def test_a_mixture_is_what_a_loop_over_tokens_says(changes):
    ours, theirs = make(**changes), make(**changes)
    if ours.bias is not None:
        for each in (ours, theirs):
            each.bias += torch.tensor([0.3, -0.2, 0.1, 0.0, -0.4])
    results = []
    for made, call in [(ours, lambda x: (ours(x), ours.loss)), (theirs, lambda x: by_loops(theirs, x))]:
        x = inputs()
        y, loss = call(x)
        total = y.square().sum() + (loss if changes["balance"] == "loss" else 0)
        total.backward()
        results.append([total.detach(), y.detach(), x.grad, *(p.grad for p in made.parameters())])
    for one, other in zip(*results, strict=True):
        one = torch.zeros(()) if one is None else one
        other = torch.zeros_like(one) if other is None else other  # an expert that nobody chose
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_an_expert_that_nobody_chooses_has_a_gradient_of_zero():
    made = make(balance="bias")
    made.bias[2] = -10
    made(inputs()).sum().backward()
    assert made.load[2] == 0
    assert all(p.grad is not None and not p.grad.any() for p in made.experts["2"].parameters())


def test_of_equal_scores_the_lowest_numbers_win():
    made = make()
    torch.nn.init.zeros_(made.router.weight)
    chosen, weights = made.choose(made.router(inputs()).flatten(0, 1))
    assert chosen.unique(dim=0).tolist() == [[0, 1]]
    assert weights.unique().tolist() == [0.5]


def test_the_first_tokens_take_the_slots():
    made = make(capacity=1.0)
    torch.nn.init.zeros_(made.router.weight)
    chosen, _ = made.choose(made.router(inputs()).flatten(0, 1))
    assert made.rules.slots(21) == 9
    assert chosen.tolist() == [[0, 1]] * 9 + [[5, 5]] * 12


def test_an_even_load_has_the_least_balance_loss():
    made = make(balance="loss", loss_weight=1.0)
    even = torch.eye(5).repeat(4, 1)
    load = torch.full((5,), 8)
    assert made.balance_loss(torch.full((20, 5), 0.2), load) == pytest.approx(1)
    assert made.balance_loss(even, load) == pytest.approx(1)
    assert made.balance_loss(even[:1], torch.tensor([40, 0, 0, 0, 0])) == pytest.approx(5)


def test_the_router_computes_in_32_bits_at_least():
    made = make().bfloat16()
    assert made.router(inputs().bfloat16()).dtype == torch.float32
    assert made(inputs().bfloat16()).dtype == torch.bfloat16
    assert make().router(inputs()).dtype == torch.float64


def test_what_is_recomputed_or_evaluated_is_not_counted():
    made = make(balance="bias")
    checkpoint(made, inputs()).sum().backward()
    assert made.load.sum() == 21 * 2
    made.eval()(inputs())
    assert made.load.sum() == 21 * 2


def test_a_balance_loss_that_recomputing_would_lose_is_refused():
    """A recomputed block hands on its output alone: its balance loss would have no gradient."""
    y = checkpoint(make(balance="loss"), inputs())
    with pytest.raises(ValueError, match="recomputed, which loses its balance loss; use balance='bias'"):
        y.sum().backward()


def test_a_bias_moves_toward_the_mean_load():
    made = make(balance="bias")
    made.load += torch.tensor([10, 0, 4, 4, 2])
    mixture.rebalance(made)
    assert made.bias.tolist() == pytest.approx([-0.001, 0.001, 0, 0, 0.001])
    assert not made.load.any()


# ---- in the transformer ----------------------------------------------------------------------------------------------

SPEC = TransformerSpec(
    vocab_size=11, context_length=7, hidden_size=8, num_layers=2, num_heads=2, style="llama", experts=RULES
)


def with_rules(**changes):
    torch.manual_seed(0)
    return transformer.Transformer(dataclasses.replace(SPEC, experts=dataclasses.replace(RULES, **changes))).double()


def tokens():
    return torch.randint(11, (3, 8), generator=torch.Generator().manual_seed(2))


def test_the_balance_loss_of_every_layer_is_added_in_training():
    batch = tokens()
    plain, balanced = with_rules(), with_rules(balance="loss", loss_weight=0.5)
    losses = [model(batch[:, :-1], batch[:, 1:]) for model in (plain, balanced, copy.deepcopy(balanced).eval())]
    assert losses[2] == losses[0]
    assert (losses[1] - losses[0]).item() == pytest.approx(2 * 0.5, rel=0.2)  # two layers, at first nearly even


def test_one_expert_of_full_width_is_the_feed_forward_block():
    dense = transformer.Transformer(dataclasses.replace(SPEC, experts=None, ffn_size=6)).double()
    one = Experts(num_experts=1, per_token=1, expert_size=6)
    mixed = transformer.Transformer(dataclasses.replace(SPEC, experts=one)).double()
    state = {name.replace(".mlp.", ".mlp.experts.0."): x for name, x in dense.state_dict().items()}
    mixed.load_state_dict(state, strict=False)
    torch.testing.assert_close(mixed(tokens()[:, :7]), dense(tokens()[:, :7]), rtol=0, atol=1e-12)


def test_projections_into_the_residual_stream_begin_smaller():
    model = transformer.Transformer(dataclasses.replace(SPEC, hidden_size=64))
    block = model.blocks[0].mlp
    assert block.experts["3"].down.weight.std().item() == pytest.approx(0.02 / 2, rel=0.1)
    assert block.router.weight.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("balance", ["loss", "bias"])
def test_balancing_evens_out_a_load(balance):
    """At first all tokens choose the same two experts, which have half of the load each."""
    model = with_rules(balance=balance, loss_weight=1.0, bias_step=0.01)
    with torch.no_grad():
        model.embedding.tokens.weight[:, 0] += 0.2
        for block in model.blocks:
            block.mlp.router.weight[:2, 0] += 0.5
    adam, batch, fullest = torch.optim.AdamW(model.parameters(), lr=1e-2), tokens(), []
    for _ in range(40):
        adam.zero_grad()
        model(batch[:, :-1], batch[:, 1:]).backward()
        fullest.append(max(block.mlp.load.max() / block.mlp.load.sum() for block in model.blocks))
        adam.step()
        mixture.rebalance(model)
    assert fullest[0] == 0.5
    assert fullest[-1] < 0.35
