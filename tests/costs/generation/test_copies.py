"""The copies of a generator write a step's texts as long as a play of all steps of decoding takes."""

import pytest

from shardlab.costs.facts import hardware, models
from shardlab.costs.generation.copies import GeneratorCopies
from shardlab.costs.generation.decode import DecodingRank
from shardlab.costs.generation.loop import full_slots
from shardlab.sharding.layout import ONE_RANK, Layout

CHIP = hardware.chip("H100 SXM 80 GB")
SPECS = {name: models.published(name).spec for name in ("Llama 3 8B", "Llama 3 405B")}
LENGTHS = [40, 7, 7, 300, 12, 95, 1, 210]


def copies_of(copies, lengths, layout=ONE_RANK, spec="Llama 3 8B", prompt=500):
    rank = DecodingRank(spec=SPECS[spec], chip=CHIP, layout=layout)
    return GeneratorCopies(decoding=rank, copies=copies, prompt=prompt, lengths=lengths)


def played(writers):
    """Seconds, token by token, of slots that take the next text as soon as theirs has ended."""
    seconds, waiting, left = 0.0, list(writers.lengths), []
    while waiting or left:
        while waiting and len(left) < writers.slots:
            left.append(waiting.pop(0))
        seconds += writers.token(len(left))
        left = [length - 1 for length in left if length > 1]
    return seconds


@pytest.mark.parametrize(("copies", "layout"), [(1, Layout()), (2, Layout()), (1, Layout(dp=2)), (2, Layout(tp=2))])
def test_few_texts_take_what_a_play_takes(copies, layout):
    writers = copies_of(copies, LENGTHS, layout)
    assert writers.writing[-1] == (pytest.approx(played(writers)), 0.0)
    assert writers.full == pytest.approx(writers.generating / writers.gpus / played(writers))


def test_many_texts_that_wait_for_slots_take_what_a_play_takes():
    writers = copies_of(1, LENGTHS * 30, prompt=4_000)
    assert len(LENGTHS) * 30 > 2 * writers.slots
    assert writers.writing[-1][0] == pytest.approx(played(writers))
    shares = [share for _, share in writers.writing]
    assert shares[0] == 1


def test_the_context_is_that_of_all_tokens_written():
    held = [500 + token for length in LENGTHS for token in range(1, length + 1)]
    assert copies_of(1, LENGTHS).context == pytest.approx(sum(held) / len(held), abs=2)


def test_texts_of_one_length_leave_no_slot_empty():
    assert copies_of(4, [100] * 32).full == pytest.approx(1)


def test_empty_slots_make_a_step_of_decoding_shorter_but_not_free():
    """Between every step as long as a full one, and none that waits for the longest."""
    writers = copies_of(2, LENGTHS * 8)
    assert full_slots(writers.lengths, writers.slots) < writers.full < 1


def test_replicas_in_a_copy_are_copies_of_their_own():
    one, two = copies_of(1, LENGTHS, Layout(dp=2)), copies_of(2, LENGTHS)
    assert (one.gpus, one.slots, one.writing) == (two.gpus, two.slots, two.writing)


def test_what_cannot_write_is_refused():
    with pytest.raises(ValueError, match="give the tokens of at least one"):
        copies_of(1, [])
    with pytest.raises(ValueError, match="use a larger tp"):
        copies_of(1, [9], spec="Llama 3 405B")
