"""Share among tests of the launcher a light helper, a run that must fail promptly, and a look at processes that end."""

import sys
import time
from pathlib import Path

import cloudpickle
import pytest

from shardlab.launch import RankError, run
from tests.patience import until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

# Python code after which a new helper imports torch alone, and not all that ranks may need: 2 s instead of 5.
LIGHT = """
from shardlab.launch import local
start = local.start_python
light = "setattr(helper, 'PRELOADED', ['shardlab.launch.contracts', 'shardlab.launch.meeting']) or "
local.start_python = lambda serve, descriptors: start(light + serve, descriptors)
"""
PROMPTLY = 30.0  # s: far below every time-out, far above what two busy cores need


def rank_of(group):
    return group.rank()


def failure(fn, *args, world_size=4, **options):
    """Return the report of a run that must fail promptly and leave the next run working."""
    begin = time.monotonic()
    with pytest.raises(RankError) as caught:
        run(fn, *args, world_size=world_size, **options)
    assert time.monotonic() - begin < PROMPTLY
    assert run(rank_of, world_size=2) == [0, 1]
    return str(caught.value)


def gone(processes):
    """Tell whether all of them end in time."""
    return until(lambda: not any(_runs(process) for process in processes), PROMPTLY)


def _runs(process):
    """Tell whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
