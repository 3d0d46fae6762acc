"""Count the bytes that leave this process over TCP, as the operating system sees them."""

import os
import socket
import stat
import struct
import sys

_SENT = struct.Struct("<QQ")  # tcpi_bytes_sent and tcpi_bytes_retrans of Linux's struct tcp_info
_SENT_AT = 200  # bytes: their offset in the struct


def sent() -> int | None:
    """Return the bytes that this process has sent over TCP so far; None where that is unknown.

    They include gloo's headers, and no retransmissions.
    """
    if sys.platform != "linux":
        return None
    total = 0
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            info = _tcp_info(descriptor)
        except OSError:  # closed meanwhile
            continue
        if info is None:
            continue
        if len(info) < _SENT_AT + _SENT.size:  # the kernel is older than these fields
            return None
        bytes_sent, retransmitted = _SENT.unpack_from(info, _SENT_AT)
        total += bytes_sent - retransmitted
    return total


def _tcp_info(descriptor: int) -> bytes | None:
    """Return Linux's struct tcp_info of a TCP socket; None for other descriptors."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return None
    with socket.socket(fileno=os.dup(descriptor)) as link:
        over_ip = link.family in (socket.AF_INET, socket.AF_INET6)
        if not over_ip or link.type != socket.SOCK_STREAM:
            return None
        return link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
