"""Without a flush every stage computes with the stale weights that the paper's formula gives."""

import re

import pytest
import torch

from shardlab.launch import RankError, run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import pipeline, transformer
from shardlab.ranks.pipeline import partition, pipedream
from shardlab.schedules import make

STAGES, BATCHES, RATE = 3, 7, 0.5


def model(style="llama"):
    torch.manual_seed(0)
    spec = TransformerSpec(
        vocab_size=11, context_length=5, hidden_size=8, num_layers=3, num_heads=2, style=style
    )
    return transformer.Transformer(spec).double()


def data():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(11, (BATCHES, 6), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def weights(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def stale():
    """Train one process by w_s(t+1) = w_s(t) - rate * gradient at w_s(t - (p - 1 - s))."""
    whole, schedule = model(), make("1F1B", STAGES, 1)
    stage_of = {
        name: stage
        for stage in range(STAGES)
        for name, _ in partition.split(whole, schedule, stage)[0].named_parameters()
    }
    history, losses = [weights(whole)], []
    for t, (tokens, targets) in enumerate(zip(*data(), strict=True)):
        with torch.no_grad():
            for name, p in whole.named_parameters():
                p.copy_(history[max(0, t - (STAGES - 1 - stage_of[name]))][name])
        whole.zero_grad()
        loss = whole(tokens[None], targets[None])
        loss.backward()
        losses.append(loss.item())
        history.append(
            {name: history[-1][name] - RATE * p.grad for name, p in whole.named_parameters()}
        )
    return history[-1], losses


def train(group, flush):
    """Train with PipeDream, or on the same batches with a pipeline that drains after each."""
    whole = model()
    parts = partition.split(whole, make("1F1B", STAGES, BATCHES), group.rank())
    sgd = torch.optim.SGD(parts[0].parameters(), lr=RATE)
    if not flush:
        pipe = pipedream.PipeDream(parts, make("1F1B", STAGES, BATCHES), group, sgd)
        losses = pipe.steps(*data())
        return weights(parts[0]), [loss.item() for loss in losses], pipe.missed
    pipe = pipeline.Pipeline(parts, make("1F1B", STAGES, 1), group)
    for tokens, targets in zip(*data(), strict=True):
        sgd.zero_grad()
        pipe.step(tokens[None], targets[None])
        sgd.step()
    return weights(parts[0]), [], []


@pytest.fixture(scope="module")
def ranks():
    return run(lambda group: (train(group, False), train(group, True)), world_size=STAGES)


@pytest.mark.parity(
    "pipeline", "training without a flush is its formula: weights as stale as predicted"
)
def test_the_weights_are_those_of_the_formula(ranks):
    expected, losses = stale()
    for (found, _, _), _ in ranks:
        for name, weight in found.items():
            torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-12)
    assert ranks[-1][0][1] == pytest.approx(losses, abs=1e-12)


def test_each_stage_misses_as_many_steps_as_stages_follow(ranks):
    assert [missed for (_, _, missed), _ in ranks] == [
        [0, 1, 2, 2, 2, 2, 2],
        [0, 1, 1, 1, 1, 1, 1],
        [0] * 7,
    ]


@pytest.mark.parity("pipeline", "training with a flush is that of one process")
def test_with_a_flush_it_is_the_training_of_one_process(ranks):
    whole = model()
    sgd = torch.optim.SGD(whole.parameters(), lr=RATE)
    for tokens, targets in zip(*data(), strict=True):
        sgd.zero_grad()
        whole(tokens[None], targets[None]).backward()
        sgd.step()
    for (stale, _, _), (found, _, _) in ranks:
        for name, weight in found.items():
            torch.testing.assert_close(
                weight, whole.get_parameter(name).detach(), rtol=0, atol=1e-12
            )
            assert not torch.allclose(stale[name], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "style"), [("1F1B", "gpt2"), ("ZB-H1", "llama")])
def test_tied_heads_and_split_backwards_are_refused(name, style):
    def start(group):
        schedule, whole = make(name, 2, 2), model(style)
        sgd = torch.optim.SGD(whole.parameters(), lr=RATE)
        pipedream.PipeDream(partition.split(whole, schedule, group.rank()), schedule, group, sgd)

    message = "use a model with an untied head and a schedule with whole backwards"
    with pytest.raises(RankError, match=re.escape(message)):
        run(start, world_size=2)
