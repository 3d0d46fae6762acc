"""Ranks that train and generate do what one process does: tokens' log p, their version, and the weights."""

import itertools
import statistics
import sys

import cloudpickle
import pytest
import torch

from shardlab import trace
from shardlab.costs.generation.hand_over import HandOver
from shardlab.launch import RankError, run
from shardlab.ranks.generation import loop, task
from shardlab.ranks.observe import ledger

from ...rank_types import rank_type

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SPLITS = [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)]  # ranks that train, and that generate
PROMPTS, ANSWERS, STEPS, RATE = 5, 4, 3, 2e-3  # 20 texts do not divide by 3 ranks
NORMS = (2 * task.SPEC.num_layers + 1) * task.SPEC.hidden_size  # numbers that every rank of the generator gets


@pytest.fixture(scope="module")
def base():
    return task.base_model()


def right(text):
    """Whether a text counts as its mark says, written another way than the task's."""
    number, mark, *answer = text
    while 0 <= number + task.STEPS[mark] <= 15:
        number += task.STEPS[mark]
        if not answer or answer.pop(0) != number:
            return 0.0
    return float(answer == [task.END])


def alone(base, rollouts, off):
    """Train one process on the texts that ranks drew; return what differs, and the weights."""
    model = task.Transformer(task.SPEC).double()
    model.load_state_dict(base.state_dict())
    adam, wrong = torch.optim.Adam(model.parameters(), lr=RATE), []
    history = [{name: x.clone() for name, x in model.state_dict().items()}]
    writer = task.Transformer(task.SPEC).double()
    for step, drawn in enumerate(rollouts):
        version = max(0, step - off)
        writer.load_state_dict(history[version])
        texts = [row[row != task.PAD].tolist() for row in drawn.tokens]
        rewards, gains = [right(text) for text in texts], []
        for n, text in enumerate(texts):
            group = rewards[n // ANSWERS * ANSWERS :][:ANSWERS]
            advantage = (rewards[n] - statistics.mean(group)) / (statistics.pstdev(group) + 0.1)
            tokens = torch.tensor([text])
            ours, old = (each(tokens)[0].log_softmax(-1) for each in (model, writer))
            for place in range(2, len(text)):
                p, q = ours[place - 1, text[place]], float(old[place - 1, text[place]].detach())
                if abs(q - float(drawn.log_p[n, place])) > 1e-12 or int(drawn.version[n, place]) != version:
                    wrong.append((step, n, place))
                ratio = (p - q).exp()
                gains.append(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
        adam.zero_grad()
        (-torch.stack(gains).mean()).backward()
        adam.step()
        history.append({name: x.clone() for name, x in model.state_dict().items()})
    return wrong, history


def together(group, base, trainers):
    """Learn at several ages, and count what the first hand-over of a run sends."""
    found = {}
    for off in (0, 1):
        model = task.Transformer(task.SPEC).double()
        model.load_state_dict(base.state_dict())
        with ledger.Ledger() as book:
            found[off] = loop.learn(group, model, trainers, STEPS, off, PROMPTS, ANSWERS, RATE)
        exchanges = [each for each in book.events if each.op == "all_to_all"]
        found[off, "sent"] = [trace.wire_bytes(each) / 8 for each in exchanges]
    return found


@pytest.fixture(scope="module", params=SPLITS, ids=str)
def learned(request, base):
    trainers, writers = request.param
    ranks = rank_type(trainers + writers)
    return request.param, run(together, base, trainers, world_size=trainers + writers, ranks=ranks)


@pytest.mark.parametrize("off", [0, 1])
@pytest.mark.parity("trainer_generator", "trainers and generators learn like one process: log p, weights")
def test_ranks_do_what_one_process_does(learned, base, off):
    """The log p of each token is that of the version it says; trainers and generators hold what one process holds."""
    (trainers, writers), ranks = learned
    rollouts = ranks[0][off].rollouts
    wrong, history = alone(base, rollouts, off)
    assert wrong == []
    assert sum(ranks[0][off].rewards) > 0, "no text is right, and nothing is learned"
    for name, whole in history[STEPS].items():
        pieces = torch.cat([ranks[n][off].weights[name] for n in range(trainers)])[: whole.numel()]
        torch.testing.assert_close(pieces.view_as(whole), whole, rtol=0, atol=1e-9)
        assert not torch.equal(whole, history[0][name])
    for n in range(trainers, trainers + writers):
        part = ranks[n][off].weights["head.weight"]
        whole = history[STEPS - 1 - off]["head.weight"].chunk(writers)[n - trainers]
        torch.testing.assert_close(part, whole, rtol=0, atol=1e-9)


def test_the_ratio_is_one_in_the_first_step_and_later_only_in_turn(learned):
    """The preflight of the whole set-up; one step off, the second step has the first one's weights, and differs."""
    (trainers, _), ranks = learned
    for rank in ranks[:trainers]:
        assert max(rank[0].mismatch) < 1e-12
        assert rank[1].mismatch[0] < 1e-12 < 1e-4 < rank[1].mismatch[1]


@pytest.mark.counted("trainer_generator", "bytes that each rank sends in a hand-over")
def test_a_hand_over_sends_what_was_predicted(learned):
    (trainers, writers), ranks = learned
    numbers = sum(x.numel() for x in task.Transformer(task.SPEC).parameters())
    for rank in ranks:
        assert rank[0, "sent"] == [rank[0].sent] * STEPS
    sent = [rank[0].sent for rank in ranks]
    assert sum(sent) == numbers + (writers - 1) * NORMS, "each generating rank gets all norms"
    predicted = HandOver(whole=8 * numbers, cut=writers, trainers=trainers)
    assert max(sent) * 8 <= predicted.busiest * 1.02
    arrived = (numbers + (writers - 1) * NORMS) / writers
    assert arrived * 8 == pytest.approx(predicted.arrives, rel=0.01)


OURS = {  # W: waiting, H: hand over, T: train, G: generate; a trainer's and a generator's
    0: ("WHWT WHWT WHWT", "WHGW WHGW WHGW"),
    1: ("WHW WHTW WHTW T", "WHGW WHGW WHGW"),
}


@pytest.mark.parametrize("off", [0, 1])
def test_one_step_off_trainers_train_while_the_others_generate(learned, off):
    (trainers, _), ranks = learned
    for number, rank in enumerate(ranks):
        events = rank[off].events
        assert all(a.rank == number and a.end <= b.start for a, b in itertools.pairwise(events))
        assert "".join(each.op[0].upper() for each in events) == OURS[off][number >= trainers].replace(" ", "")


def test_the_reward_rises(base):
    rewards = run(loop.learn, base, 1, 45, 0, 32, 8, 3e-3, world_size=2, ranks="threads")[0].rewards
    assert statistics.mean(rewards[-10:]) > statistics.mean(rewards[:10]) + 0.06


@pytest.mark.parametrize(("trainers", "off"), [(0, 0), (2, 0), (1, -1)])
def test_an_engine_without_a_rank_is_refused(base, trainers, off):
    with pytest.raises(RankError, match=f"trainers={trainers}, off={off} on 2 ranks: use 1 to 1 trainers"):
        run(loop.learn, base, trainers, 1, off, world_size=2, ranks="threads")
