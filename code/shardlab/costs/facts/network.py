"""Nodes and clusters: the wires of a node, the cards that join nodes, the path between two GPUs.

A node is a graph of GPUs, switches, processors and network cards. Every wire is two hops, one for
each direction, with a bandwidth of its own. Contention is nothing but messages sharing a hop.

    GPU 0 --PCIe-- PCIe switch 0 --PCIe-- CPU 0 --UPI-- CPU 1        NIC 0 --InfiniBand-- network
      |                 |
    NVLink            NIC 0

Between nodes lies a full fat tree (Leiserson 1985, doi:10.1109/TC.1985.6312192), or a `Fabric`.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from shardlab.files.arguments import Count, Positive, checked, within

from .fabrics import Fabric
from .hardware import Chip, Link
from .hops import Hop

NETWORK = "network"  # what every card of every node is joined to
SWITCH = "NVSwitch"
NEEDS_CARDS = "describe one with cards and network, as `python -m shardlab.plan --help` shows"
DEVICES = ("GPU ", "NIC ")  # they do not forward messages


@dataclass(frozen=True, kw_only=True)
@checked
class Wire:
    """A link between two parts of a node."""

    a: str  # "GPU 3", "NVSwitch", "PCIe switch 1", "CPU 0", "NIC 2", or NETWORK
    b: str
    link: Link
    # Parallel links; or, where `link` is all NVLinks of a GPU, the share of them in this wire.
    width: Positive = 1.0

    @property
    def bandwidth(self) -> float:
        """Bytes/s in one direction."""
        return self.width * self.link.bandwidth


Route = tuple[tuple[str, Wire], ...]  # wires, each with the part at which a message enters it


@dataclass(frozen=True, kw_only=True)
@checked
class Node:
    """A server, or a rack whose GPUs one switch joins."""

    name: str
    chip: Chip
    wires: tuple[Wire, ...] = field(repr=False, hash=False)  # the name tells nodes apart
    source: str = field(repr=False)
    peer_to_peer: bool = True  # devices reach each other over PCIe alone (GPUDirect)
    adds: float = 0.0  # the share of NVLink's rate at which the switch adds; 0: it cannot add
    rings: tuple[tuple[int, ...], ...] = ()  # orders in which rings visit all GPUs; (): by number
    forwards: bool = False  # its chips forward messages to others, as in a torus

    @cached_property
    def gpus(self) -> int:
        """The number of GPUs in the node."""
        return len(self._parts("GPU "))

    @cached_property
    def cards(self) -> int:
        """The number of network cards in the node."""
        return len(self._parts("NIC "))

    @cached_property
    def network_bandwidth(self) -> float:
        """Bytes/s that all network cards together carry in one direction."""
        return sum(wire.bandwidth for wire in self.wires if NETWORK in (wire.a, wire.b))

    @property
    def drawn(self) -> list[tuple[str, str, str, str, float]]:
        """The wires for a figure: from, to, name and kind of the link, bytes/s in one direction."""
        return [(w.a, w.b, w.link.name, w.link.kind, w.bandwidth) for w in self.wires]

    def card(self, gpu: int) -> str:
        """Return the nearest network card of a GPU; GPUs with the same nearest cards take turns.

        Errors: ValueError for a node without cards.
        """
        if not self.cards:
            raise ValueError(f"{self.name} has no network card; {NEEDS_CARDS}")
        within("gpu", gpu, self.gpus)
        return self._card_of[gpu]

    def route(self, start: str, goal: str) -> Route:
        """Find the widest, then shortest route between two parts, as (part, wire) pairs.

        GPUs and cards do not forward messages, except the chips of a torus, where the shortest
        route is taken. Errors: ValueError where no route exists.
        """
        if (start, goal) not in self._routes:
            way = self._ways(start, 0.0).get(goal) if self.forwards else self._widest(start, goal)
            if way is None:
                raise ValueError(f"no route leads from {start} to {goal} in {self.name}")
            detour = not self.forwards and self._forbidden(way)
            self._routes[start, goal] = self._detour(start, goal) if detour else way
        return self._routes[start, goal]

    def _parts(self, kind: str) -> list[str]:
        parts = dict.fromkeys(part for wire in self.wires for part in (wire.a, wire.b))
        return [part for part in parts if part.startswith(kind)]

    def _widest(self, start: str, goal: str) -> Route | None:
        """Find the shortest of the routes whose narrowest wire is the widest; None without one."""
        ways = (self._ways(start, rate).get(goal) for rate in self._rates)
        return next((way for way in ways if way is not None), None)

    def _ways(self, start: str, least: float) -> dict[str, Route]:
        """Find the route of fewest wires to every part, over wires of at least `least` bytes/s."""
        if (start, least) not in self._reached:
            ways: dict[str, Route] = {start: ()}
            for part in (reached := [start]):  # which grows
                if part == start or self.forwards or not part.startswith(DEVICES):
                    for end, wire in self._wires_at.get(part, ()):
                        if end not in ways and wire.bandwidth >= least:
                            ways[end] = (*ways[part], (part, wire))
                            reached.append(end)
            self._reached[start, least] = ways
        return self._reached[start, least]

    def _forbidden(self, way: Route) -> bool:
        """Tell whether a route needs peer-to-peer traffic over PCIe that is not possible."""
        over_pcie = all(wire.link.kind == "PCIe" for _, wire in way)
        parts = [part for part, _ in way] + [other_end(*way[-1])]
        between_devices = parts[0].startswith(DEVICES) and parts[-1].startswith(DEVICES)
        direct = not any(part.startswith("CPU ") for part in parts)
        return not self.peer_to_peer and over_pcie and between_devices and direct

    def _detour(self, start: str, goal: str) -> Route:
        """Find the route through the memory of the nearest processor."""
        nearest = min(self._parts("CPU "), key=lambda cpu: len(self.route(start, cpu)))
        return self.route(start, nearest) + self.route(nearest, goal)

    @cached_property
    def _card_of(self) -> list[str]:
        """For each GPU, its turn among the cards that are the fewest wires away."""
        found = []
        turns: Counter[tuple[str, ...]] = Counter()
        every = tuple(self._parts("NIC "))
        for start in map("GPU {}".format, range(self.gpus)):
            ways = self._ways(start, 0.0)
            reached = {card: len(self.route(start, card)) for card in every if card in ways}
            least = min(reached.values(), default=0)
            nearest = tuple(card for card in every if reached.get(card) == least) or every
            found.append(nearest[turns[nearest] % len(nearest)])
            turns[nearest] += 1
        return found

    @cached_property
    def _wires_at(self) -> dict[str, list[tuple[str, Wire]]]:
        found: dict[str, list[tuple[str, Wire]]] = {}  # part -> the parts beside it, by which wire
        for wire in self.wires:
            found.setdefault(wire.a, []).append((wire.b, wire))
            found.setdefault(wire.b, []).append((wire.a, wire))
        return found

    @cached_property
    def _routes(self) -> dict[tuple[str, str], Route]:
        return {}

    @cached_property
    def _rates(self) -> list[float]:
        return sorted({wire.bandwidth for wire in self.wires}, reverse=True)

    @cached_property
    def _reached(self) -> dict[tuple[str, float], dict[str, Route]]:
        return {}


@dataclass(frozen=True, kw_only=True)
@checked
class Cluster:
    """Equal nodes on one network; their GPUs are numbered node by node."""

    node: Node
    num_nodes: Count = 1
    fabric: Fabric | None = None  # None: no switch between two nodes is ever the narrowest

    def __post_init__(self) -> None:
        if self.num_nodes > 1 and not self.node.cards:
            raise ValueError(
                f"{self.node.name} has no network card, which {self.num_nodes} nodes need; use one "
                f"of its nodes, with {self.node.gpus} GPUs, or {NEEDS_CARDS}"
            )

    @property
    def name(self) -> str:
        """ "DGX H100" or "2 × DGX H100"."""
        return self.node.name if self.num_nodes == 1 else f"{self.num_nodes} × {self.node.name}"

    @property
    def gpus(self) -> int:
        """The number of GPUs in all nodes together."""
        return self.num_nodes * self.node.gpus

    def node_of(self, gpu: int) -> int:
        """Return the node that contains a GPU. Errors: ValueError for a GPU that does not exist."""
        within("gpu", gpu, self.gpus)
        return gpu // self.node.gpus

    def path(self, a: int, b: int) -> tuple[Hop, ...]:
        """List the hops of a message from GPU `a` to GPU `b`; none from a GPU to itself."""
        here = self.node_of(a)
        if here == self.node_of(b):
            ends = (f"GPU {gpu % self.node.gpus}" for gpu in (a, b))
            return self._hops(here, self.node.route(*ends)) if a != b else ()
        return self.to_network(a) + self._spines(a, b) + self.from_network(b)

    def to_network(self, gpu: int) -> tuple[Hop, ...]:
        """List the hops from a GPU through its card into the network."""
        return self._through_card(gpu, f"GPU {gpu % self.node.gpus}", NETWORK)

    def from_network(self, gpu: int) -> tuple[Hop, ...]:
        """List the hops from the network through a GPU's card to the GPU."""
        return self._through_card(gpu, NETWORK, f"GPU {gpu % self.node.gpus}")

    def to_switch(self, gpu: int) -> tuple[Hop, Hop]:
        """Return the hops from a GPU into the NVSwitch and back; ValueError without an NVSwitch."""
        part = f"GPU {gpu % self.node.gpus}"
        way = self.node.route(part, SWITCH) + self.node.route(SWITCH, part)
        up, down = self._hops(self.node_of(gpu), way)
        return up, down

    def _spines(self, a: int, b: int) -> tuple[Hop, ...]:
        nodes = self.node_of(a), self.node_of(b)
        cards = self.node.card(a % self.node.gpus), self.node.card(b % self.node.gpus)
        rates = self.node.cards, self.node.network_bandwidth
        return self.fabric.hops(nodes, cards, *rates) if self.fabric else ()

    def _through_card(self, gpu: int, start: str, goal: str) -> tuple[Hop, ...]:
        card = self.node.card(gpu % self.node.gpus)
        way = self.node.route(start, card) + self.node.route(card, goal)
        return self._hops(self.node_of(gpu), way)

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


@checked
def uniform(gpus: Count, link: Link, chip: Chip) -> Cluster:
    """Put GPUs on one switch, each with `link` to itself: the machine of the alpha-beta model."""
    wires = tuple(Wire(a=f"GPU {gpu}", b="switch", link=link) for gpu in range(gpus))
    node = Node(name=f"{gpus} × {link.name}", chip=chip, wires=wires, source=link.source)
    return Cluster(node=node)


@checked
def other_end(part: str, wire: Wire) -> str:
    """Return the other end of a wire that starts at `part`."""
    return wire.b if part == wire.a else wire.a
