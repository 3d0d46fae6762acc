"""A pipeline on a clock: sentence, table and figure agree with the schedule at every time."""

from shardlab.explorers import pipeline_clock as clock

EXPLORER = clock.explorer()


def test_at_every_time_the_table_says_what_each_stage_does_and_holds():
    for state in EXPLORER.states():
        run, now = clock._played(state["schedule"]), state["clock"]
        view = EXPLORER.view(**state)
        running = {e.rank: e.op for e in run.events() if e.start <= now < e.end}
        assert [op for _, op, _ in view.table[1:]] == [running.get(stage, "waits") for stage in range(clock.STAGES)]
        held = [0] * clock.STAGES
        for e in run.events():
            held[e.rank] += (e.op[0] == "F" and e.start <= now) - (e.op[0] == "B" and e.end <= now)
        assert [int(count) for *_, count in view.table[1:]] == held
        if now < run.makespan:
            assert f"<b>{len(running)} of {clock.STAGES} stages" in view.sentence
            assert f"activations of {max(held)} microbatch" in view.sentence


def test_what_has_not_begun_is_faded():
    figure = EXPLORER.view(schedule="1F1B", clock=9).figure
    for bar in (trace for trace in figure.data if trace.type == "bar"):
        assert [shade == 1 for shade in bar.marker.opacity] == [begin <= 9 for begin in bar.base]
    assert figure.layout.shapes[0].x0 == 9


def test_the_state_that_is_printed_is_the_whole_batch():
    shown = EXPLORER.view(**EXPLORER.default())
    assert "27 % of all time was bubble" in shown.sentence  # 3 / 11
    assert "8 microbatches" in shown.sentence
    assert "4 microbatches" in EXPLORER.view(**{**EXPLORER.default(), "schedule": "1F1B"}).sentence
    assert all(set(bar.marker.opacity) == {1} for bar in shown.figure.data if bar.type == "bar")
