"""Who reaches whom through what: the wires of a node, the cards that join nodes, and the path between two GPUs.

A node is a graph of GPUs, switches, processors and network cards, and every wire of it is two hops, one for each
direction, with a bandwidth of its own. Messages that cross the same hop share it; that is all there is to contention.

    GPU 0 --PCIe-- PCIe switch 0 --PCIe-- CPU 0 --UPI-- CPU 1        NIC 0 --InfiniBand-- network
      |                 |
    NVLink            NIC 0

The network between nodes is taken to be non-blocking (a full fat tree: Leiserson 1985, doi:10.1109/TC.1985.6312192).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from .hardware import Chip, Link
from .hops import Hop

NETWORK = "network"  # what every card of every node is joined to
SWITCH = "NVSwitch"
DEVICES = ("GPU ", "NIC ")  # they pass nothing on


@dataclass(frozen=True, kw_only=True)
class Wire:
    """A link between two parts of a node."""

    a: str  # "GPU 3", "NVSwitch", "PCIe switch 1", "CPU 0", "NIC 2", or NETWORK
    b: str
    link: Link
    width: float = 1.0  # so many of them side by side; for a part of a GPU's NVLinks, their share of all

    @property
    def bandwidth(self) -> float:
        """Bytes/s in one direction."""
        return self.width * self.link.bandwidth


Route = tuple[tuple[str, Wire], ...]  # wires, each with the part at which a message enters it


@dataclass(frozen=True, kw_only=True)
class Node:
    """A server, or a rack whose GPUs one switch joins."""

    name: str
    chip: Chip
    wires: tuple[Wire, ...] = field(repr=False)
    source: str = field(repr=False)
    peer_to_peer: bool = True  # PCIe carries data past the processor (GPUDirect); else all of it goes through there
    adds: float = 0.0  # the share of NVLink's rate at which its switch adds numbers up; 0: it cannot
    rings: tuple[tuple[int, ...], ...] = ()  # orders in which rings visit all GPUs; none: by number
    passes_on: bool = False  # its chips pass messages on to others, as in a torus

    @cached_property
    def gpus(self) -> int:
        """How many GPUs the node has."""
        return len(self._parts("GPU "))

    @cached_property
    def cards(self) -> int:
        """How many network cards it has."""
        return len(self._parts("NIC "))

    @cached_property
    def network_bandwidth(self) -> float:
        """Bytes/s in one direction that all its cards together carry."""
        return sum(wire.bandwidth for wire in self.wires if NETWORK in (wire.a, wire.b))

    @property
    def drawn(self) -> list[tuple[str, str, str, str, float]]:
        """The wires for a figure: from, to, name and kind of the link, bytes/s in one direction."""
        return [(wire.a, wire.b, wire.link.name, wire.link.kind, wire.bandwidth) for wire in self.wires]

    def card(self, gpu: int) -> str:
        """The card a GPU uses: the nearest; GPUs with the same choice take turns.

        Errors: ValueError for a node without cards.
        """
        if not self.cards:
            raise ValueError(f"{self.name} has no network card; it makes no cluster with others")
        mine = self._nearest_cards[gpu]
        rivals = [each for each, nearest in enumerate(self._nearest_cards) if nearest == mine]
        return mine[rivals.index(gpu) % len(mine)]

    def route(self, start: str, goal: str) -> Route:
        """The wires from one part to another, each with the part where it begins: the widest way, then the shortest.

        GPUs and cards pass nothing on, but for those of a torus, where the shortest way is taken.
        Errors: ValueError where there is no way.
        """
        if self.passes_on and (start, goal) not in self._routes:
            self._routes[start, goal] = self._shortest(start, goal)
        if (start, goal) not in self._routes:
            ways = sorted(self._ways(start, goal, ()), key=lambda way: (-narrowest(way), len(way)))
            if not ways:
                raise ValueError(f"no way leads from {start} to {goal} in {self.name}")
            self._routes[start, goal] = self._detour(start, goal) if self._forbidden(ways[0]) else ways[0]
        return self._routes[start, goal]

    def _parts(self, kind: str) -> list[str]:
        parts = dict.fromkeys(part for wire in self.wires for part in (wire.a, wire.b))
        return [part for part in parts if part.startswith(kind)]

    def _ways(self, part: str, goal: str, done: Route) -> Iterator[Route]:
        """All ways to the goal that visit no part twice, after the wires `done`, which lead to `part`."""
        if part == goal:
            yield done
        elif not done or not part.startswith(DEVICES):
            visited = {each for each, _ in done} | {part}
            for wire in self._wires_at.get(part, ()):
                if other_end(part, wire) not in visited:
                    yield from self._ways(other_end(part, wire), goal, (*done, (part, wire)))

    def _shortest(self, start: str, goal: str) -> Route:
        """The fewest wires to the goal, past other chips."""
        ways: dict[str, Route] = {start: ()}
        reached = [start]
        for part in reached:  # which grows
            for wire in self._wires_at.get(part, ()):
                end = other_end(part, wire)
                if end not in ways:
                    ways[end] = (*ways[part], (part, wire))
                    reached.append(end)
        if goal not in ways:
            raise ValueError(f"no way leads from {start} to {goal} in {self.name}")
        return ways[goal]

    def _forbidden(self, way: Route) -> bool:
        """Whether data would pass from device to device over PCIe alone where that is not possible."""
        over_pcie = all(wire.link.kind == "PCIe" for _, wire in way)
        parts = [part for part, _ in way] + [other_end(*way[-1])]
        between_devices = parts[0].startswith(DEVICES) and parts[-1].startswith(DEVICES)
        return not self.peer_to_peer and over_pcie and between_devices and not any(p.startswith("CPU ") for p in parts)

    def _detour(self, start: str, goal: str) -> Route:
        """Through the memory of the nearest processor."""
        nearest = min(self._parts("CPU "), key=lambda cpu: len(self.route(start, cpu)))
        return self.route(start, nearest) + self.route(nearest, goal)

    @cached_property
    def _nearest_cards(self) -> list[list[str]]:
        """For each GPU the cards that are the fewest wires away."""
        found = []
        for gpu in range(self.gpus):
            ways = {card: next(self._ways(f"GPU {gpu}", card, ()), None) for card in self._parts("NIC ")}
            reached = {card: len(self.route(f"GPU {gpu}", card)) for card, way in ways.items() if way}
            found.append([card for card, distance in reached.items() if distance == min(reached.values())])
        return found

    @cached_property
    def _wires_at(self) -> dict[str, list[Wire]]:
        found: dict[str, list[Wire]] = {}
        for wire in self.wires:
            found.setdefault(wire.a, []).append(wire)
            found.setdefault(wire.b, []).append(wire)
        return found

    @cached_property
    def _routes(self) -> dict[tuple[str, str], Route]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal nodes on one network; their GPUs are counted through, node by node."""

    node: Node
    num_nodes: int = 1

    def __post_init__(self) -> None:
        if self.num_nodes < 1:
            raise ValueError(f"a cluster of {self.num_nodes} nodes does not exist; use at least 1")
        if self.num_nodes > 1 and not self.node.cards:
            raise ValueError(f"{self.node.name} has no network card: 1 of it makes a cluster, not {self.num_nodes}")

    @property
    def name(self) -> str:
        """"DGX H100" or "2 x DGX H100"."""
        return self.node.name if self.num_nodes == 1 else f"{self.num_nodes} x {self.node.name}"

    @property
    def gpus(self) -> int:
        """How many GPUs all nodes have together."""
        return self.num_nodes * self.node.gpus

    def node_of(self, gpu: int) -> int:
        """The node in which a GPU is. Errors: ValueError for a GPU that does not exist."""
        if not 0 <= gpu < self.gpus:
            raise ValueError(f"{self.name} has the GPUs 0 to {self.gpus - 1}, not {gpu}")
        return gpu // self.node.gpus

    def path(self, a: int, b: int) -> tuple[Hop, ...]:
        """The hops of a message from GPU a to GPU b, in order; none from a GPU to itself."""
        here, there = self.node_of(a), self.node_of(b)
        first, last = f"GPU {a % self.node.gpus}", f"GPU {b % self.node.gpus}"
        if here == there:
            return self._hops(here, self.node.route(first, last)) if a != b else ()
        return self.to_network(a) + self.from_network(b)

    def to_network(self, gpu: int) -> tuple[Hop, ...]:
        """From a GPU through its card into the network."""
        local = gpu % self.node.gpus
        card = self.node.card(local)
        return self._hops(self.node_of(gpu), self._through(f"GPU {local}", card, NETWORK))

    def from_network(self, gpu: int) -> tuple[Hop, ...]:
        """From the network through its card to a GPU."""
        local = gpu % self.node.gpus
        card = self.node.card(local)
        return self._hops(self.node_of(gpu), self._through(NETWORK, card, f"GPU {local}"))

    def to_switch(self, gpu: int) -> tuple[Hop, Hop]:
        """From a GPU into the NVSwitch, and back. Errors: ValueError for a node without one."""
        node, part = self.node_of(gpu), f"GPU {gpu % self.node.gpus}"
        (up,), (down,) = (self._hops(node, self.node.route(*ends)) for ends in ((part, SWITCH), (SWITCH, part)))
        return up, down

    def _through(self, start: str, card: str, goal: str) -> Route:
        return self.node.route(start, card) + self.node.route(card, goal)

    def _hops(self, node: int, route: Route) -> tuple[Hop, ...]:
        where = f"node {node}: " if self.num_nodes > 1 else ""
        return tuple(
            Hop(
                name=f"{where}{part} → {other_end(part, wire)}",
                kind=wire.link.kind,
                bandwidth=wire.bandwidth,
                latency=wire.link.latency,
            )
            for part, wire in route
        )


def uniform(gpus: int, link: Link, chip: Chip) -> Cluster:
    """GPUs on one switch, each with `link` to itself: the machine of the alpha-beta model."""
    wires = tuple(Wire(a=f"GPU {gpu}", b="switch", link=link) for gpu in range(gpus))
    return Cluster(node=Node(name=f"{gpus} x {link.name}", chip=chip, wires=wires, source=link.source))


def other_end(part: str, wire: Wire) -> str:
    """Where a wire leads that begins at `part`."""
    return wire.b if part == wire.a else wire.a


def narrowest(route: Route) -> float:
    """Bytes/s that a route carries; without end for a route of no wires."""
    return min((wire.bandwidth for _, wire in route), default=float("inf"))
