"""How many steps a collective took: messages that had to follow each other, read from what the ranks recorded."""

from collections.abc import Sequence

from shardlab.trace import Event

SEND, RECEIVE = "send", "receive"


def steps(programs: Sequence[Sequence[Event]]) -> int:
    """The last step, if in one step a rank sends at most one message and receives at most one.

    programs: `Ledger.program` of every rank of a group whose messages were sent and received among themselves.
    """
    ranks = [_Rank(program) for program in programs]
    sent: dict[tuple[int, int, int], list[int]] = {}  # (from, to, tag) -> the step of each message
    while any([rank.go_on(sent) for rank in ranks]):  # a list: every rank has its turn
        pass
    assert all(rank.finished for rank in ranks)
    return max((rank.clock for rank in ranks), default=0)


class _Rank:
    """Plays one program: steps of its own go by as it sends, receives and waits."""

    def __init__(self, program: Sequence[Event]) -> None:
        self.program, self.at = program, 0
        self.clock = self.last_sent = self.last_received = 0  # steps
        self.issued: dict[int | None, tuple[tuple[int, int, int], int]] = {}  # number -> which message of which pair
        self.asked: dict[tuple[int, int, int], int] = {}

    @property
    def finished(self) -> bool:
        return self.at == len(self.program)

    def go_on(self, sent: dict[tuple[int, int, int], list[int]]) -> bool:
        """Play until a message is missing; whether anything was played."""
        begin = self.at
        while not self.finished and self._play(self.program[self.at], sent):
            self.at += 1
        return self.at > begin

    def _play(self, event: Event, sent: dict[tuple[int, int, int], list[int]]) -> bool:
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

    def _wait(self, event: Event, sent: dict[tuple[int, int, int], list[int]]) -> bool:
        """Wait for a message that was sent, or that is to come; whether it is there."""
        pair, count = self.issued[event.number]
        if len(sent.get(pair, [])) < count:
            return False
        step = sent[pair][count - 1]
        if pair[1] == event.rank:
            self.last_received = step = max(step, self.last_received + 1)
        self.clock = max(self.clock, step)
        return True
