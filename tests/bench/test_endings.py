"""Who decides: one event for real, which takes away all that it started, and all of them as they were recorded."""

import dataclasses
import json
import subprocess

import pytest
from two_agents import endings
from two_agents.endings import Life

from shardlab.files import measured

pytestmark = pytest.mark.slow

RECORDED = measured.results("endings")
ROWS = {row["name"]: row for row in RECORDED["rows"]}
ENDING = {ending.name: ending for ending in endings.ENDINGS}


def lives(name, run=0):
    return {life["who"]: Life(**life) for life in ROWS[name]["runs"][run]["lives"]}


def said(name):
    return "\n".join(line for lines in ROWS[name]["runs"][0]["said"].values() for line in lines)


# ---- for real ------------------------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch):
    """The process ids of all ranks and agents that a run has seen, whether they still live or not."""
    seen = set()
    look = endings._Run.look

    def noting(self):
        seen.update(each.pid for each in self.processes())
        return look(self)

    monkeypatch.setattr(endings._Run, "look", noting)
    yield seen
    assert len(seen) >= 4
    listed = subprocess.check_output(["ps", "-A", "-o", "pid=,stat="], text=True)
    states = dict(map(str.split, listed.splitlines()))
    assert all(states.get(str(pid), "Z").startswith("Z") for pid in seen)


def test_ranks_of_a_killed_agent_train_on_and_are_taken_away_in_the_end(started):
    outcome = endings.run(dataclasses.replace(ENDING["agent killed"], watched=4.0))
    found = {life.who: life for life in outcome.lives}
    assert found["agent 1"].how == "exit code -9"
    assert found["rank 1"].left == found["agent 0"].left == "runs"
    assert found["rank 1"].steps > 5


# ---- as recorded ---------------------------------------------------------------------------------------------------


def test_every_row_was_recorded_as_it_stands():
    assert list(ROWS) == list(ENDING)
    for name, ending in ENDING.items():
        known = json.loads(json.dumps({**dataclasses.asdict(ending), "sent": ending.sent.name}))
        assert {key: ROWS[name][key] for key in known} == known


def test_torchs_keep_alive_is_missed_and_nobody_is_restarted():
    """Three heartbeats of five seconds (`dynamic_rendezvous.py`), and the training goes on."""
    for name in ("agent stopped", "agent killed"):
        assert ROWS[name]["watched"] > 3 * 5 + 5
        for rank in ("rank 0", "rank 1"):
            assert lives(name)[rank].left == "runs"
            assert lives(name)[rank].steps > 100
        assert lives(name)["agent 0"].left == "runs"


def test_a_stopped_rank_is_found_by_the_time_out_and_ended_by_kill_alone():
    """Before a restart torchrun waits its 30 s between the two signals, whatever --shutdown-timeout says."""
    found = lives("rank stopped")
    assert found["rank 0"].ended > RECORDED["group"]
    assert found["rank 1"].how == lives("rank stopped, no restarts")["rank 1"].how == "SIGKILL from its agent"
    assert found["rank 1"].ended - found["rank 0"].ended > 30
    short = lives("rank stopped, no restarts")
    assert short["rank 1"].ended - short["rank 0"].ended < 10


def test_who_comes_again_joins_only_a_store_that_is_not_shared():
    for name in ("agent killed, started again", "node killed, started again"):
        assert "MASTER_ADDR" in said(name)
        assert all(life.ended is not None for life in lives(name).values())
        other = lives(f"{name}, store not shared")
        assert other["rank 0'"].steps > 10 < other["rank 1'"].steps


def test_each_agent_has_restarts_of_its_own():
    """One was allowed, and two took place."""
    assert ROWS["rank stopped"]["max_restarts"] == 1
    assert lives("rank stopped")["rank 1''"].steps > 10


def test_only_a_watchdog_before_the_time_out_names_the_culprit():
    assert "rank 1: no step for 3 s, in next_batch" in said("watchdog first")
    assert "rank 0: no step for 3 s, in all_reduce" in said("watchdog first")
    assert "watchdog" not in said("time-out first")
    assert "Timed out waiting 6000ms" in said("time-out first")


def test_a_run_and_its_successor_train_at_once():
    found = lives("agent 0 killed, started again, static")
    assert found["rank 0"].steps > 100 < found["rank 0'"].steps
    assert found["rank 0"].left == found["rank 0'"].left == "runs"
