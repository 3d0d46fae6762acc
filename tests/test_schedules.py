"""Every schedule is complete, legal and free of deadlocks for any pipeline; whatever is wrong is said in words."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab import schedules
from shardlab.schedules import Action, Schedule, check, deadlock, loop, make, parse, plan, problems, times, vee
from shardlab.schedules.classic import groups_of
from shardlab.schedules.instructions import instructions, stuck
from shardlab.schedules.v_shaped import Draft
from shardlab.sharding.deal import deal

SMALL = [(p, m) for p in range(1, 6) for m in (1, 2, 3, 4, 5, 7, 8, 11)]
NAMES = list(schedules.SCHEDULES)


def everything(p, m):
    """Every schedule of `p` stages and `m` microbatches."""
    return [make(name, p, m) for name in NAMES] + [make(name, p, m, v) for name in schedules.CHUNKED for v in (1, 3, 4)]


def mine(*rows, m=2, parts=None):
    orders = tuple(tuple(parse(row)) for row in rows)
    return Schedule(name="mine", orders=orders, num_microbatches=m, parts=parts or loop(len(rows)))


# ---- actions -------------------------------------------------------------------------------------------------------


def test_an_action_prints_as_papers_write_it():
    assert str([Action("F", 3), Action("W", 12, 1), Action("B", 0, 1, joined=True)]) == "[F3, W12.1, &B0.1]"


@given(st.sampled_from("FBIW"), st.integers(0, 99), st.integers(0, 9), st.booleans())
def test_what_is_printed_can_be_read_again(kind, microbatch, chunk, joined):
    action = Action(kind, microbatch, chunk, joined)
    assert parse(str(action)) == [action]


def test_a_word_that_is_no_action_is_refused():
    with pytest.raises(ValueError, match=r"'f3' is not an action; write F3, or F3\.1 with chunk 1"):
        parse("F0 f3")


def test_the_parts_of_a_loop_and_of_a_v():
    assert loop(3) == ((0,), (1,), (2,))
    assert loop(2, 3) == ((0, 2, 4), (1, 3, 5))
    assert vee(3) == ((0, 5), (1, 4), (2, 3))
    v = make("ZB-V", 3, 4)
    assert v.homes == ((0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1))
    assert [make(name, 3, 4).num_crossings for name in ("1F1B", "interleaved", "ZB-V")] == [2, 5, 4]
    assert (v.source(0, Action("F", 0)), v.target(2, Action("F", 0)), v.target(0, Action("B", 0))) == (None, 3, None)
    assert (v.source(2, Action("I", 0)), v.source(0, Action("B", 0, 1)), v.target(1, Action("W", 0))) == (3, None, None)


@pytest.mark.parametrize("parts", [((0, 2), (1,)), ((0,), (0,)), ((0,), (2,)), ((0,),)])
def test_every_part_is_on_one_stage(parts):
    with pytest.raises(ValueError, match=r"2 stages cannot hold the parts .* as loop\(2\) does"):
        Schedule(name="mine", orders=((), ()), num_microbatches=1, parts=parts)


# ---- the schedules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "m"), SMALL)
def test_every_schedule_can_run(p, m):
    for schedule in everything(p, m):
        assert problems(schedule) == [], schedule
        for stage, order in enumerate(schedule.orders):
            counts = {kind: sum(action.kind == kind for action in order) for kind in "FBIW"}
            assert counts["F"] == counts["B"] + counts["I"] == m * schedule.num_chunks, (schedule.name, stage)
            assert counts["I"] == counts["W"]


@pytest.mark.parametrize(("p", "m"), SMALL)
def test_the_plan_of_every_schedule_runs_even_if_every_send_blocks(p, m):
    for schedule in everything(p, m):
        programs = plan(schedule)
        assert stuck(programs, blocking=True) == "", schedule.name
        for stage, program in enumerate(programs):
            assert [step.action for step in program if step.verb == "compute"] == list(schedule.orders[stage])
            naive = instructions(schedule, stage)
            assert sorted(map(str, program)) == sorted(map(str, naive))  # the same steps in another order


@pytest.mark.parametrize("name", ["1F1B", "interleaved", "ZB-H1", "ZB-V", "DualPipe-V"])
def test_both_ends_of_a_link_have_the_same_messages_in_the_same_order(name):
    """Only then are messages without names paired rightly."""
    programs = plan(make(name, 3, 7))
    for here, program in enumerate(programs):
        for there in range(3):
            sent = [step.message for step in program if step.verb == "send" and step.peer == there]
            received = [s.message for s in programs[there] if s.verb == "receive" and s.peer == here]
            assert sent == received


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_in_the_docstring_is_the_schedule(name):
    documented = schedules.SCHEDULES[name].order.__doc__
    found = re.search(r"(\d) stages, (\d) microbatches.*:\n\n((?: +stage \d: .*\n)+)", documented)
    shown = [line.strip() for line in found[3].splitlines()]
    assert schedules.picture(make(name, int(found[1]), int(found[2]))).splitlines() == shown


def test_1f1b_is_that_of_the_paper():
    """Narayanan et al. 2021 (https://arxiv.org/abs/2104.04473), Figure 4, top; microbatches counted from 0."""
    assert str(make("1F1B", 4, 8)).splitlines() == [
        "stage 0: F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
        "stage 1: F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
        "stage 2: F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
        "stage 3: F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
    ]


def torch_order(schedule, stage):
    """What torch's engine would do: its own generator, without its communication."""
    from torch.distributed.pipelining import schedules as engine

    kinds = {"interleaved": "Interleaved1F1B", "ZB-V": "ZBVZeroBubble", "DualPipe-V": "DualPipeV"}
    cls = getattr(engine, f"Schedule{kinds[schedule.name]}")
    self = object.__new__(cls)
    p, v, m = schedule.num_stages, schedule.num_chunks, schedule.num_microbatches
    self.pp_group_size, self.n_local_stages, self._n_microbatches, self.num_stages = p, v, m, p * v
    self.number_of_rounds = max(1, m // p)
    self.microbatches_per_round = m // self.number_of_rounds
    self.rank = stage
    chunk = {part: chunk for chunk, part in enumerate(schedule.parts[stage])}
    found = []
    for action in cls._calculate_single_rank_operations(self, stage):
        for each in () if action is None else action.sub_actions or (action,):
            joined = action is not None and each is not action and each is action.sub_actions[1]
            found.append(Action(each.computation_type.value, each.microbatch_index, chunk[each.stage_index], joined))
    return found


TORCH = [("interleaved", 4, 8), ("interleaved", 3, 8), ("interleaved", 4, 3), ("ZB-V", 4, 9), ("ZB-V", 3, 2)]


@pytest.mark.parametrize(("name", "p", "m"), [*TORCH, ("DualPipe-V", 4, 9), ("DualPipe-V", 3, 6)])
def test_the_order_is_that_of_torchs_engine(name, p, m):
    schedule = make(name, p, m)
    for stage, order in enumerate(schedule.orders):
        theirs = torch_order(schedule, stage)
        if name == "ZB-V":  # the weights that are left at the end are free to go in any order
            tail = max(i for i, action in enumerate(theirs) if action.kind != "W") + 1
            assert list(order[:tail]) == theirs[:tail]
            assert sorted(order[tail:]) == sorted(theirs[tail:])
        else:
            assert list(order) == theirs


def test_a_draft_refuses_a_w_that_is_not_due():
    draft = Draft()
    draft.write("F0 I0 W0")
    with pytest.raises(ValueError, match=r"no W0 is due after \[F0, I0, W0\]; write its I first"):
        draft.write("W0")


@given(st.integers(1, 60), st.integers(1, 9))
def test_groups_are_whole_and_as_equal_as_possible(number, least):
    assert groups_of(7, 3) == [range(4), range(4, 7)]
    groups = groups_of(number, least)
    assert groups == list(deal(number, len(groups)))
    assert min(least, number) <= len(groups[-1]) < 2 * least


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1f1b", 2, 2), "no schedule is called '1f1b'; known: naive, GPipe, 1F1B"),
        (("1F1B", 0, 2), "num_stages=0 must be a whole number of at least 1"),
        (("GPipe", 2, 0), "num_microbatches=0 must be a whole number of at least 1"),
        (("1F1B", 2, 2, 2), "1F1B with 2 chunks on each stage: it has 1; a choice, of 1 or more, is there for inter"),
        (("ZB-V", 2, 2, 3), "ZB-V with 3 chunks on each stage: it has 2"),
        (("interleaved", 2, 2, 0), "num_chunks=0 must be a whole number of at least 1"),
    ],
)
def test_what_is_no_schedule_is_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make(*arguments)


def test_inference_keeps_the_forwards_in_their_order():
    assert str(make("1F1B", 2, 3).forward_only()) == "stage 0: F0 F1 F2\nstage 1: F0 F1 F2"


# ---- what is wrong with an order -----------------------------------------------------------------------------------

GOOD = "F0 F1 B0 B1"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("F0 F1 I0 W1 I1 W0", "W1 before I1 on stage 1"),
        ("F0 B1 F1 B0", "B1 before F1 on stage 1"),
        ("F0 B0 B1", "B1 without F1 on stage 1"),
        ("F0 F1 B0", "no B1 on stage 1"),
        ("F1 B1", "no F0 on stage 1"),
        ("F0 F0 F1 B0 B1", "F0 twice on stage 1"),
        ("F0 F1 I0 B1", "I0 without W0 on stage 1"),
        ("F0 F1 B0 I0 W0 B1", "B0 as well as I0 on stage 1: a backward is whole or split"),
        ("F0 F1 B0 B1 F2", "F2 on stage 1: the microbatches are 0 to 1"),
        ("F0 F1 B0 B1 F0.1", "F0.1 on stage 1: the chunks are 0 to 0"),
        ("F0 F1 B0 B1 X0", "X0 on stage 1: actions are F, B, I, W"),
    ],
)
def test_the_validator_says_why_an_order_is_illegal(row, said):
    found = problems(mine(GOOD, row))
    assert said in found
    assert len(found) <= 3


def test_a_pair_is_a_forward_and_a_whole_backward():
    assert problems(mine("F0 F1 &B0 B1", m=2)) == []
    for row in ("F0 &F1 B0 B1", "&F0 F1 B0 B1", "F0 F1 &I0 W0 B1"):
        assert any("join a forward and a whole backward" in each for each in problems(mine(row)))


def test_a_chunk_waits_for_the_other_chunk_of_its_stage():
    parts = vee(1)
    assert problems(mine("F0 F0.1 B0.1 B0", m=1, parts=parts)) == []
    assert problems(mine("F0.1 F0 B0.1 B0", m=1, parts=parts)) == ["F0.1 before F0 on stage 0"]
    assert problems(mine("F0 F0.1 I0 W0 B0.1", m=1, parts=parts)) == ["I0 before B0.1 on stage 0"]


def test_the_message_is_short_and_complete():
    with pytest.raises(ValueError, match=r"mine cannot run: no F0 on stage 0; .*\(and 15 more\)"):
        check(mine("", "", m=5))
    assert check(mine(GOOD, GOOD)) == mine(GOOD, GOOD)


# ---- deadlocks -----------------------------------------------------------------------------------------------------


def test_a_deadlock_is_found_before_anything_runs():
    crossed = mine("F0 B0 F1 B1", "F0 F1 B0 B1")
    said = "deadlock: stage 0 waits in B0 for stage 1, stage 1 waits in F1 for stage 0"
    assert problems(crossed) == [deadlock(crossed)] == [said]
    with pytest.raises(ValueError, match="mine cannot run: deadlock: stage 0 waits in B0"):
        times(crossed)
    with pytest.raises(ValueError, match="deadlock"):
        plan(crossed)


def test_only_the_stages_on_the_circle_are_named():
    longer = mine("F0 F1 B0 B1", "F0 B0 F1 B1", "F0 F1 B0 B1")
    assert deadlock(longer) == "deadlock: stage 1 waits in B0 for stage 2, stage 2 waits in F1 for stage 1"


def test_a_stage_that_has_ended_ends_the_story():
    assert deadlock(mine("F0", "F0 F1", m=2)) == "deadlock: stage 1 waits in F1 for stage 0"


def test_two_neighbours_that_both_send_first_are_found():
    first, second = deadlock(make("1F1B", 2, 2), blocking=True).split(", ")
    assert first == "deadlock: stage 0 sends after F1 and waits until stage 1 receives"
    assert second == "stage 1 sends after B0 and waits until stage 0 receives"
    assert deadlock(make("1F1B", 2, 2)) == ""


@pytest.mark.parametrize("name", NAMES)
def test_who_stops_when_every_send_blocks(name):
    """Where messages cross, somebody sends while the neighbour sends: all but these two."""
    assert (deadlock(make(name, 3, 6), blocking=True) == "") == (name in {"naive", "GPipe"})


@given(st.data())
def test_what_the_validator_lets_pass_can_be_played_and_nothing_else(data):
    """Shuffled orders; the reference looks for anything that can go next, again and again."""
    p, m = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    kinds = data.draw(st.sampled_from(["FB", "FIW"]))
    whole = [Action(kind, i) for i in range(m) for kind in kinds]
    orders = tuple(tuple(data.draw(st.permutations(whole))) for _ in range(p))
    schedule = Schedule(name="shuffled", orders=orders, num_microbatches=m, parts=loop(p))
    done, at = set(), [0] * p
    moved = True
    while moved:
        moved = False
        for s, order in enumerate(orders):
            if at[s] == len(order):
                continue
            kind, i, *_ = order[at[s]]
            needs = {"F": [("F", s - 1, i)] * (s > 0), "W": [("I", s, i)]}.get(
                kind, [("F", s, i)] + [(kind, s + 1, i)] * (s < p - 1)
            )
            if done.issuperset(needs):
                done.add((kind, s, i))
                at[s] += 1
                moved = True
    runs = at == [len(whole)] * p
    assert (problems(schedule) == []) == runs
    if runs:
        assert all(len(row) == len(whole) for row in times(schedule))
