"""A reader's file is regular, small and in UTF-8, or its name stands in the error; text moves no terminal's cursor."""

import os

import pytest

from shardlab import trace
from shardlab.files import given


def test_a_file_is_read(tmp_path):
    (tmp_path / "a").write_text("ä\n", encoding="utf-8")
    assert given.read(tmp_path / "a", most=3) == "ä\n"


def test_what_is_no_such_file_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # to open it would wait without end
    (tmp_path / "large").write_text("1234")
    (tmp_path / "latin").write_bytes("ä".encode("latin-1"))
    reasons = {
        "pipe": "it is no regular file",
        ".": "it is no regular file",
        "large": "it has more than 3e-06 MB",
        "latin": "as UTF-8",
        "none": "No such file or directory",
        "a" * 4000: "File name too long",
    }
    for name, reason in reasons.items():
        with pytest.raises(ValueError, match=f"cannot be read.*{reason}") as caught:
            given.read(tmp_path / name, most=3)
        assert str(tmp_path) in str(caught.value)
        with pytest.raises(ValueError, match=r"cannot be read|is not JSON|holds no list"):
            trace.load(tmp_path / name)


def test_a_long_number_is_shown_by_its_ends():
    assert given.shortened(f"x={'1' * 8 + '2' * 400 + '3' * 8} of 12345678901234567890") == (
        "x=11111111...33333333 of 12345678901234567890"
    )


def test_a_refusal_is_one_line_without_its_middle():
    @given.in_one_line()
    def refuse():
        raise ValueError("a\x1b[2Jb\n" + 2000 * "x" + "end") from KeyError("c")

    with pytest.raises(ValueError, match=r"^a\\x1b\[2Jb\\nx+ \.\.\. x+end$") as caught:
        refuse()
    assert isinstance(caught.value.__cause__, KeyError)


def test_control_characters_are_escaped():
    assert given.shown("\x1b[2J\r\u202eä\t1\n") == "\\x1b[2J\\r\\u202eä\t1\n"
    assert given.shown("a\nb\udc80", keep="") == "a\\nb\\udc80"
