"""Transfers that share hops: each gets its max-min fair share, recomputed when one begins or ends.

Max-min fair: raise the rates of all transfers together until a hop is full, fix those that cross
it, continue with the others (Bertsekas and Gallager 1992, Data Networks, section 6.5.2). Switches
with one queue for each input, and congestion control, come close to it. SimGrid uses it, where it
was validated against packet simulation (Velho et al. 2013, doi:10.1145/2517448). First come, first
served would be wrong wherever messages of two speeds meet on one hop.
"""

from collections.abc import Iterable, Sequence

Uses = Sequence[tuple[int, float]]  # (hop, bytes through it for each byte that a rank passes on)


class Flow:
    """One transfer while its bytes move."""

    __slots__ = ("left", "owner", "rate", "since", "uses", "version")

    def __init__(self, owner: int, uses: Uses, nbytes: float, now: float) -> None:
        self.owner = owner  # number of the transfer
        self.uses = uses
        self.left = nbytes
        self.since = now  # when `left` was updated
        self.rate = 0.0  # bytes/s
        self.version = 0  # counts the changes of the rate

    @property
    def end(self) -> float:
        """When the last byte arrives if the rate stays."""
        return self.since + self.left / self.rate

    def change(self, rate: float, now: float) -> None:
        """Continue at another rate."""
        self.left -= self.rate * (now - self.since)
        self.since = now
        self.rate = rate
        self.version += 1


class Wires:
    """All hops and the flows on them. `capacities`: bytes/s of each hop."""

    def __init__(self, capacities: Sequence[float]) -> None:
        self.capacities = capacities
        # hop -> (start, bytes/s), one entry for each change
        self.rates: list[list[tuple[float, float]]] = [[] for _ in capacities]
        self._flows: list[dict[Flow, float]] = [{} for _ in capacities]
        self._new: list[Flow] = []
        self._changed: dict[int, None] = {}  # hops, in the order in which they changed

    def add(self, flow: Flow) -> None:
        """Add a flow; its rate is known after `settle`."""
        for hop, share in flow.uses:
            self._flows[hop][flow] = share
        self._new.append(flow)

    def remove(self, flow: Flow) -> None:
        """Remove a flow that has ended."""
        for hop, _ in flow.uses:
            del self._flows[hop][flow]
            self._changed[hop] = None

    def settle(self, now: float) -> list[Flow]:
        """Share the hops again after changes; return the flows whose rate has changed."""
        moved: list[Flow] = []
        for flow in self._new:
            if self._has_idle_hops(flow):  # the usual case
                flow.change(self._alone(flow), now)
                moved.append(flow)
                for hop, share in flow.uses:
                    self.rates[hop].append((now, share * flow.rate))
            else:
                self._changed.update(dict.fromkeys(hop for hop, _ in flow.uses))
        settled: set[int] = set()
        for hop in self._changed:
            if not self._flows[hop]:
                self.rates[hop].append((now, 0.0))
            elif hop not in settled:
                hops, flows = self._neighbours(hop)
                settled.update(hops)
                for flow, rate in self._fair(hops, flows):
                    if rate != flow.rate:
                        flow.change(rate, now)
                        moved.append(flow)
                self._note(hops, now)
        self._new.clear()
        self._changed.clear()
        return moved

    def _has_idle_hops(self, flow: Flow) -> bool:
        """Tell whether a new flow has all its hops to itself."""
        return all(len(self._flows[hop]) == 1 and hop not in self._changed for hop, _ in flow.uses)

    def _neighbours(self, hop: int) -> tuple[list[int], list[Flow]]:
        """Find all hops and flows whose rates depend on `hop`: those that flows connect to it."""
        hops = {hop: None}
        flows = dict.fromkeys(self._flows[hop])
        waiting = list(flows)
        while waiting:
            for each, _ in waiting.pop().uses:
                if each not in hops:
                    hops[each] = None
                    new = [flow for flow in self._flows[each] if flow not in flows]
                    flows.update(dict.fromkeys(new))
                    waiting += new
        return list(hops), list(flows)

    def _fair(self, hops: Sequence[int], flows: Sequence[Flow]) -> Iterable[tuple[Flow, float]]:
        """Compute the max-min fair rate of each flow."""
        if len(flows) == 1:
            return [(flows[0], self._alone(flows[0]))]
        fixed: dict[Flow, float] = {}
        free = {hop: self.capacities[hop] for hop in hops}
        unfixed = {hop: dict(self._flows[hop]) for hop in hops if self._flows[hop]}
        while unfixed:
            levels = [(free[hop] / sum(flows.values()), hop) for hop, flows in unfixed.items()]
            level, full = min(levels)
            for flow in list(unfixed[full]):
                fixed[flow] = level
                for hop, share in flow.uses:
                    free[hop] -= share * level
                    del unfixed[hop][flow]
            unfixed = {hop: flows for hop, flows in unfixed.items() if flows}
        return fixed.items()

    def _alone(self, flow: Flow) -> float:
        return min([self.capacities[hop] / share for hop, share in flow.uses])

    def _note(self, hops: Iterable[int], now: float) -> None:
        for hop in hops:
            rate = sum([share * flow.rate for flow, share in self._flows[hop].items()])
            if not self.rates[hop] or self.rates[hop][-1][1] != rate:
                self.rates[hop].append((now, rate))
