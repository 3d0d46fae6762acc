"""A rank's facts hold no more than JSON does, and the hash of code changes with any byte or name of it."""

import json

import pytest

from shardlab.preflight import alike, between, facts, who


def test_facts_travel_as_json_and_every_check_reads_them(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    own = json.loads(json.dumps(facts.own(__file__)))
    assert (own["rank"], own["world"], own["files"]) == (0, 1, 1)
    for check in (who.devices, who.room, alike.software, alike.environment, between.addresses):
        assert all(each.verdict != "FAIL" for each in check([own]))


def test_only_variables_that_ranks_should_share_are_compared(monkeypatch):
    monkeypatch.setattr(facts.os, "environ", {"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "3", "HOME": "/"})
    assert facts.own(__file__)["env"] == {"NCCL_DEBUG": "INFO"}


def test_the_hash_of_a_folder_sees_bytes_and_names(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "b" / "c.py").write_text("y = 1")
    first, count = facts.fingerprint(tmp_path)
    assert count == 2
    (tmp_path / "a.py").write_text("x = 2")
    second, _ = facts.fingerprint(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "d.py")
    third, _ = facts.fingerprint(tmp_path)
    assert len({first, second, third}) == 3


def test_hidden_folders_environments_and_other_files_do_not_count(tmp_path):
    for place in (".git", "env"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.py").write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "notes.txt").write_text("")
    assert facts.fingerprint(tmp_path)[1] == 0


def test_code_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"--code .*mine.py does not exist; give a script, or a folder with \*.py"):
        facts.fingerprint(tmp_path / "mine.py")


def test_a_name_resolves_to_addresses_or_to_none():
    assert "127.0.0.1" in facts.addresses("localhost")
    assert facts.addresses("no-such-host.invalid") == facts.addresses("") == []
