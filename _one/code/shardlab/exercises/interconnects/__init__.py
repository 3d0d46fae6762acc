"""The exercises on interconnects, easiest first: interconnects.<file> names each."""

from . import message_seconds, network_share

EXERCISES = (
    network_share.EXERCISE,
    message_seconds.EXERCISE,
)
