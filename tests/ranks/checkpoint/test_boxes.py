"""All ranks together hold the whole, as boxes."""

from dataclasses import replace

import pytest
import torch

from shardlab.launch import run
from shardlab.sharding.layout import Layout
from tests.ranks import training

LAYOUTS = [
    (Layout(tp=2, pp=2), "1F1B", "gpt2"),
    (Layout(tp=4, sequence_parallel=True), "GPipe", "llama"),  # two ranks hold the same key head
    (Layout(dp=4, zero=3), "GPipe", "gpt2"),
    (Layout(dp=2, tp=2, zero=1), "GPipe", "llama"),
    (Layout(dp=2, pp=2, zero=2), "1F1B", "gpt2"),
]


def boxes_of(group):
    """Return the boxes of every layout after a step, with copies of their numbers."""
    known, found = {}, []
    for layout, schedule, style in LAYOUTS:
        trainer = training.make_trainer(group, (layout, schedule, style, 3, None), known=known)
        trainer.step(*training.batch(trainer.mesh, style, 0, 9))
        found.append([replace(box, tensor=box.tensor.clone()) for box in trainer.boxes()])
    return found


@pytest.fixture(scope="module")
def by_rank():
    return run(boxes_of, world_size=4)


def stepped(style):
    model = training.plain(style, 3)
    adam = training.adamw(model.parameters())
    model(*training.data(style, 0, 9)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), training.MAX_NORM)
    adam.step()
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = {f"weights/{name}": parameter for name, parameter in named.items()}
    for name, parameter in model.named_parameters():
        found |= {f"{key}/{name}": value for key, value in adam.state[parameter].items()}
    return found


@pytest.mark.parametrize("index", range(len(LAYOUTS)), ids=lambda index: str(LAYOUTS[index][0]))
@pytest.mark.parity("composition", "the pieces of all ranks are the weights and moments of one process")
def test_all_ranks_together_hold_every_number_and_agree(index, by_rank):
    """Weights, moments and counts are those of one process, and what two ranks hold is equal."""
    expected = stepped(LAYOUTS[index][2])
    count = {name: torch.zeros_like(whole, dtype=torch.int) for name, whole in expected.items()}
    seen = {}
    for rank in by_rank:
        for box in rank[index]:
            whole = expected[box.name]
            assert tuple(whole.shape) == tuple(box.shape)
            place = tuple(slice(o, o + s) for o, s in zip(box.offsets, box.tensor.shape, strict=True))
            torch.testing.assert_close(box.tensor, whole[place], rtol=0, atol=1e-12)
            twin = seen.setdefault((box.name, box.offsets, box.tensor.shape), box.tensor)
            assert torch.equal(box.tensor, twin)
            count[box.name][place] += 1
    assert all((each > 0).all() for each in count.values())
