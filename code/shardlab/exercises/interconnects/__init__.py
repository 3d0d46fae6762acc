"""The exercises on interconnects, easiest first: interconnects.<file> names each."""

from . import fair_rates, message_seconds, network_share, two_levels

EXERCISES = (
    network_share.EXERCISE,
    message_seconds.EXERCISE,
    two_levels.EXERCISE,
    fair_rates.EXERCISE,
)
