"""Which ranks run a test that asks what a method computes.

Threads of one process compute what processes compute, for a tenth of the time (`tests/launch/test_threads.py`). Each
method still runs on processes and gloo at one size; so does whatever counts bytes of sockets, files or processes.
"""


def rank_type(world_size, on_gloo=3):
    """Return the `ranks` that `launch.run` is asked for, when a test runs at several sizes."""
    return "processes" if world_size == on_gloo else "threads"
