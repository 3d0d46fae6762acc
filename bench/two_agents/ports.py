"""Ports in each state that a wrong start can meet, held on loopback while a start takes."""

import contextlib
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"
QUEUED = 4  # connections that fill the queue of a listener that asks for none
TIMEOUT = 0.2  # s; a connection on loopback takes microseconds, or does not come about


def free() -> int:
    """Find a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def closed() -> Iterator[int]:
    """Give a port that refuses: nobody listens there."""
    yield free()


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """Give a port where connections succeed and nothing is answered, as behind some proxies."""
    with socket.create_server((HOST, 0), backlog=64) as listener:
        yield int(listener.getsockname()[1])


@contextlib.contextmanager
def dropping() -> Iterator[int]:
    """Give a port that leaves attempts unanswered, as a firewall that drops, or a dead address.

    The queue of the listener is full, so the kernel drops what asks to be let in (listen(2)).
    """
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.create_server((HOST, 0), backlog=0))
        for _ in range(QUEUED):
            client = held.enter_context(socket.socket())
            client.settimeout(TIMEOUT)
            with contextlib.suppress(TimeoutError):
                client.connect(listener.getsockname())
        yield int(listener.getsockname()[1])


STATES = {"closed": closed, "silent": silent, "dropping": dropping}
