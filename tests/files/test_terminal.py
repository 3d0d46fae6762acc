"""A command ends in one line: where its output closes early, at an interruption, and with a long message."""

import shlex
import subprocess
import sys

import pytest

from shardlab.files import terminal

COMMANDS = {
    "many lines": [sys.executable, "-c", "from shardlab.files.terminal import guarded; import sys; "
                   "sys.exit(guarded(lambda: print('line\\n' * 100_000) or 3))"],
    "exercises": [sys.executable, "-m", "shardlab.exercises", "list"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_closes_early_ends_a_command_without_a_word(command):
    shell = ["bash", "-c", f"set -o pipefail; {shlex.join(COMMANDS[command])} | true"]
    ended = subprocess.run(shell, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (terminal.CLOSED_EARLY, "")


@pytest.mark.parametrize("status", [0, 3])
def test_a_command_keeps_its_status(status):
    assert terminal.guarded(lambda: status) == status


def test_an_interrupted_command_says_so_by_its_status():
    def interrupted():
        raise KeyboardInterrupt

    assert terminal.guarded(interrupted) == terminal.INTERRUPTED


def test_a_message_is_one_line_without_its_middle(capsys):
    terminal.complain("a\x1b[2Jb\n" + 2000 * "x" + "end")
    (line,) = capsys.readouterr().err.splitlines()
    assert (line[:12], line[-3:]) == (r"a\x1b[2Jb\nx", "end")
    assert " ... " in line
