"""Count a collective's steps, messages that have to follow each other, in recorded traces."""

from collections.abc import Sequence

from shardlab.trace import Event

SEND, RECEIVE = "send", "receive"
Pair = tuple[int, int, int]  # from, to, tag
Sent = dict[Pair, list[int]]  # the step of each message


def steps(traces: Sequence[Sequence[Event]]) -> int:
    """Return the number of steps, if a rank sends and receives at most one message in each.

    traces: `Ledger.trace` of every rank of a group that sends messages to no other rank.
    """
    ranks = [_Rank(trace) for trace in traces]
    sent: Sent = {}
    while any([rank.go_on(sent) for rank in ranks]):  # a list, so that every rank has its turn
        pass
    assert all(rank.finished for rank in ranks)
    return max((rank.clock for rank in ranks), default=0)


class _Rank:
    """One rank's trace while it is played: how far it is, and in which step."""

    def __init__(self, trace: Sequence[Event]) -> None:
        self.trace = trace
        self.at = 0  # the next event
        self.clock = 0  # the step up to which this rank has waited
        self.last_sent = 0  # the step of its last message
        self.last_received = 0
        self.issued: dict[int | None, tuple[Pair, int]] = {}  # number -> which message of a pair
        self.asked: dict[Pair, int] = {}  # messages that it has begun to receive

    @property
    def finished(self) -> bool:
        """Say whether the trace has been played to its end."""
        return self.at == len(self.trace)

    def go_on(self, sent: Sent) -> bool:
        """Play until a message is missing; return whether anything was played."""
        begin = self.at
        while not self.finished and self._play(self.trace[self.at], sent):
            self.at += 1
        return self.at > begin

    def _play(self, event: Event, sent: Sent) -> bool:
        """Play one event; return False if its message is missing."""
        if event.op == SEND and event.peer is not None:
            self.last_sent = max(self.clock, self.last_sent) + 1
            pair = event.rank, event.peer, event.tag
            sent.setdefault(pair, []).append(self.last_sent)
            self.issued[event.number] = pair, len(sent[pair])
        elif event.op == RECEIVE and event.peer is not None:
            pair = event.peer, event.rank, event.tag
            self.asked[pair] = self.asked.get(pair, 0) + 1
            self.issued[event.number] = pair, self.asked[pair]
        elif event.kind == "idle" and event.number in self.issued:
            return self._wait(event, sent)
        return True

    def _wait(self, event: Event, sent: Sent) -> bool:
        """Wait for the end of a send or a receive; return False if its message is missing."""
        pair, count = self.issued[event.number]
        if len(sent.get(pair, [])) < count:
            return False
        step = sent[pair][count - 1]
        if pair[1] == event.rank:
            self.last_received = step = max(step, self.last_received + 1)
        self.clock = max(self.clock, step)
        return True
