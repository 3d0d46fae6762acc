"""Play a recorded trace on a cluster: what the same program would have done on other machines.

All rules:
- arithmetic takes its FLOPs at a stated rate; without FLOPs, the seconds written into its event;
- a transfer begins when all its ranks have issued it; a receive that has not been issued yet holds
  up its sender, as with NCCL and gloo. It waits for its latency, then its bytes move at the max-min
  fair share of every hop (`sharing`), of whose rate a stated share is reached;
- messages from one rank to another arrive one after the other, and so do the collectives of one
  group; a message's latency passes while the one before it moves, a collective's does not (NCCL
  starts it when that one has ended);
- a rank that waits for a transfer stops until it has ended, and goes on.

The simulators SMPI (Degomme et al. 2017, doi:10.1109/TPDS.2017.2669305) and Dimemas do this for MPI
programs.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import Any

from shardlab import trace
from shardlab.files.arguments import Positive, Share, checked, within
from shardlab.trace import Event

from ..compute import kernels
from ..facts.hardware import LINK_UTILISATION
from ..facts.hops import Hop
from ..facts.network import Cluster
from .sharing import Flow, Wires
from .transfers import COMPUTE, ISSUE, TransferPlan, lay_out

TOGETHER = 1e-12  # events closer than this share of the time happen at the same time
RESUME, START, END = range(3)


@dataclass(frozen=True)
@checked
class Usage:
    """What one hop carried."""

    hop: Hop
    rates: tuple[tuple[float, float], ...]  # (start, bytes/s), each until the next; the last is 0

    def __post_init__(self) -> None:
        times = [time for time, _ in self.rates]
        if times != sorted(times) or (self.rates and self.rates[-1][1]):
            raise ValueError(f"rates={self.rates} must follow one another and end with a rate of 0")

    @property
    def nbytes(self) -> float:
        """All bytes that crossed the hop."""
        ends = [*(time for time, _ in self.rates[1:]), 0.0]
        spans = zip(self.rates, ends, strict=True)
        return sum(rate * (end - start) for (start, rate), end in spans if rate)


@dataclass(frozen=True, kw_only=True)
@checked
class Replay:
    """What happened when a trace was played."""

    cluster: Cluster
    links: dict[str, Usage]  # of every hop that carried something, by its name
    seconds: float  # until the last rank was done
    _recorded: Sequence[Event] = field(repr=False)
    _times: Sequence[tuple[float, float]] = field(repr=False)

    @property
    def where(self) -> str:
        """A label for every figure of the replay."""
        return f"replayed on {self.cluster.name}"

    @cached_property
    def events(self) -> list[Event]:
        """The trace with the times of this cluster, from 0.

        A communication begins when all its ranks have issued it. Other events that took no time,
        such as waiting for what had arrived, are left out.
        """
        times = zip(self._recorded, self._times, strict=True)
        played = [replace(event, start=start, end=end) for event, (start, end) in times]
        return [event for event in played if event.kind == "communicate" or event.end > event.start]

    def parts(self, rank: int = 0) -> dict[str, float]:
        """Split one rank's seconds into computing, and waiting until the last rank was done."""
        within("rank", rank, 1 + max((event.rank for event in self._recorded), default=0))
        mine = [event for event in self.events if event.rank == rank]
        computing = sum(event.seconds for event in mine if event.kind == "compute")
        return {"computing": computing, "waiting": self.seconds - computing}

    def curves(self, count: int = 2) -> dict[str, list[tuple[float, float]]]:
        """Return how busy links were: name -> (start, share of the link's rate).

        count: how many links of every kind, the busiest first.
        """
        busy = sorted(self.links.values(), key=lambda usage: -usage.nbytes / usage.hop.bandwidth)
        kinds = dict.fromkeys(usage.hop.kind for usage in busy)
        most = []
        for kind in kinds:
            most += [usage for usage in busy if usage.hop.kind == kind][:count]
        return {
            usage.hop.name: [(start, rate / usage.hop.bandwidth) for start, rate in usage.rates]
            for usage in most
        }

    def chrome(self) -> dict[str, Any]:
        """Export the ranks, and every link's bytes/s, for https://ui.perfetto.dev."""
        rates = {name: usage.rates for name, usage in self.links.items()}
        return trace.chrome(self.events, where=self.where, rates=rates)


@checked
def replay(
    events: Iterable[Event],
    cluster: Cluster,
    *,
    placement: Sequence[int] | None = None,
    algorithm: str = "ring",
    rate: Positive | None = None,
    link_utilisation: Share = LINK_UTILISATION,
) -> Replay:
    """Play the trace, rank r on GPU placement[r], or on GPU r without a placement.

    algorithm: of all-reduces: "ring", or "switch" to add in the NVSwitch where it can. rate: FLOP/s
    of computing; None: `kernels.ordinary_flops`. Errors: ValueError for a trace that does not match
    or comes to a stop, and for ranks without a GPU.
    """
    recorded = list(events)
    laid_out = lay_out(recorded, cluster, placement, algorithm)
    rate = rate or kernels.ordinary_flops(cluster.node.chip)
    seconds = [event.flops / rate if event.flops else event.seconds for event in recorded]
    player = _Player(laid_out, seconds, link_utilisation)
    player.play()
    player.check(recorded)
    used = zip(laid_out.hops, player.wires.rates, strict=True)
    links = {hop.name: Usage(hop, tuple(rates)) for hop, rates in used if rates}
    times = list(zip(player.begun, player.ended, strict=True))
    return Replay(
        cluster=cluster,
        links=links,
        seconds=max(player.ended, default=0.0),
        _recorded=recorded,
        _times=times,
    )


class _Player:
    """Simulated time. All pending events are on one heap, in order of time, then of creation."""

    def __init__(self, laid_out: TransferPlan, seconds: list[float], share: float) -> None:
        self.programs = laid_out.programs
        self.transfers = laid_out.transfers
        self.seconds = seconds  # of each event, if it computes
        self.wires = Wires([share * hop.bandwidth for hop in laid_out.hops])
        self.at = dict.fromkeys(self.programs, 0)  # rank -> its next instruction
        # transfer -> how many ranks have not issued it yet
        self.missing = [len(transfer.events) for transfer in self.transfers]
        self.done = [False] * len(self.transfers)
        self.waiting: dict[int, list[int]] = {}  # transfer -> ranks that wait for it
        # Channel -> the transfer in flight, and the next ones.
        self.queues: dict[Any, deque[int]] = {}
        self.early: set[int] = set()  # messages whose latency is over, but not the one before them
        num_events = sum(map(len, self.programs.values()))
        self.begun = [0.0] * num_events
        self.ended = [0.0] * num_events
        self.heap: list[tuple[float, int, int, Any, int]] = []
        self.made = 0

    def play(self) -> None:
        """Handle events until none is left."""
        for rank in self.programs:
            self.go_on(rank, 0.0)
        while self.heap:
            now = self.heap[0][0]
            limit = now * (1 + TOGETHER)
            while self.heap and self.heap[0][0] <= limit:
                _, _, what, subject, version = heappop(self.heap)
                if what == RESUME:
                    self.go_on(subject, now)
                elif what == START:
                    self.start(subject, now)
                elif subject.version == version:
                    self.wires.remove(subject)
                    self.finish(subject.owner, now)
            for flow in self.wires.settle(now):
                self.later(flow.end, END, flow, flow.version)

    def later(self, time: float, what: int, subject: Any, version: int = 0) -> None:
        """Schedule an event. version: of a flow, so that an outdated end is ignored."""
        self.made += 1
        heappush(self.heap, (time, self.made, what, subject, version))

    def go_on(self, rank: int, now: float) -> None:
        """Execute a rank's instructions until one takes time."""
        program = self.programs[rank]
        at = self.at[rank]
        while at < len(program):
            what, subject, event = program[at]
            self.begun[event] = self.ended[event] = now
            if what == ISSUE:
                self.issue(subject, now)
            elif what == COMPUTE:
                if self.seconds[event]:
                    self.ended[event] = now + self.seconds[event]
                    self.at[rank] = at + 1
                    return self.later(self.ended[event], RESUME, rank)
            elif not self.done[subject]:
                self.waiting.setdefault(subject, []).append(rank)
                break
            at += 1
        self.at[rank] = at

    def issue(self, number: int, now: float) -> None:
        """Let a rank join a transfer; the last rank to join starts it."""
        self.missing[number] -= 1
        if not self.missing[number]:
            transfer = self.transfers[number]
            queue = self.queues.setdefault(transfer.channel, deque())
            queue.append(number)
            if len(queue) == 1 or transfer.channel[0] == "message":
                self.set_out(number, now)

    def set_out(self, number: int, now: float) -> None:
        """Start the latency of a transfer."""
        for event in self.transfers[number].events:
            self.begun[event] = now
        self.later(now + self.transfers[number].latency, START, number)

    def start(self, number: int, now: float) -> None:
        """End the latency: move the bytes, if there are any and no earlier transfer moves."""
        transfer = self.transfers[number]
        if self.queues[transfer.channel][0] != number:
            self.early.add(number)
        elif transfer.nbytes and transfer.uses:
            self.wires.add(Flow(number, transfer.uses, transfer.nbytes, now))
        else:
            self.finish(number, now)

    def finish(self, number: int, now: float) -> None:
        """Complete a transfer: start the next one of its channel, resume the waiting ranks."""
        transfer = self.transfers[number]
        self.done[number] = True
        for event in transfer.events:
            self.ended[event] = now
        queue = self.queues[transfer.channel]
        queue.popleft()
        if queue and transfer.channel[0] == "collective":
            self.set_out(queue[0], now)
        elif queue and queue[0] in self.early:
            self.start(queue[0], now)
        for rank in self.waiting.pop(number, ()):
            self.ended[self.programs[rank][self.at[rank]][2]] = now
            self.at[rank] += 1
            self.go_on(rank, now)

    def check(self, events: Sequence[Event]) -> None:
        """Raise a ValueError where ranks still wait: such a trace cannot have happened."""
        stuck = [
            program[self.at[rank]][2]
            for rank, program in self.programs.items()
            if self.at[rank] < len(program)
        ]
        if stuck:
            lines = [f"line {trace.line(at)}: rank {events[at].rank}" for at in stuck[:2]]
            raise ValueError(
                f"the trace comes to a stop: {' and '.join(lines)} wait for each other"
            )
