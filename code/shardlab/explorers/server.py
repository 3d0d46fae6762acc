"""Messages between two GPUs of a server, on its wires: which pair is slow, and where it is narrow.

server.js draws the server, the two GPUs and the messages that the reader chooses.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from operator import itemgetter

from shardlab.costs import units
from shardlab.costs.facts import hops, network, nodes
from shardlab.costs.facts.hops import Hop
from shardlab.costs.facts.network import NETWORK, SWITCH, Cluster

from .moving import MovingPicture, moving, radios
from .page import table

SERVERS = ("DGX-1V", "DGX A100", "DGX H100", "PCIe box, 100 GbE")
START = (0, 5)  # of a DGX-1V: without NVLink, below two processors
NBYTES = 1e9  # of a message
GPUS = 8
OUTSIDE = GPUS  # as a goal: a GPU of another server
COLUMN = 45  # from one GPU to the next; the picture is 360 wide
WIDEST = {"NVLink": 20, "PCIe": 8}  # of all a GPU's links; PCIe where it has no NVLink
DIRECT = ("on", "off")
OTHERS = ("nobody", "the GPU beside it", "the receiver")  # who sends at the same time
ROWS = {NETWORK: 24, "CPU": 62, "NIC": 124, "PCIe switch": 152, "GPU": 202, SWITCH: 262}
UNDER = 15  # from the middle of a GPU to its edge
BEND = 14  # below the GPUs, for each column that an NVLink passes
Pair = tuple[int, int]  # the GPU that sends; the one that receives, or OUTSIDE


@dataclass(frozen=True)
class Speed:
    """How fast a message is, and which hops of its path are the narrowest."""

    rate: float  # bytes/s
    narrowest: tuple[int, ...]  # places in the path

    @property
    def told(self) -> list[str]:
        """Write the rate, and the time of NBYTES."""
        return [units.text(self.rate, "B/s"), units.text(NBYTES / self.rate, "s")]


@dataclass(frozen=True)
class Server:
    """A server of eight GPUs, with GPUDirect or with all messages through the host's memory."""

    name: str
    direct: bool = True

    @cached_property
    def cluster(self) -> Cluster:
        """Return one node of this kind."""
        found = nodes.node(self.name)
        return Cluster(node=replace(found, peer_to_peer=found.peer_to_peer and self.direct))

    @cached_property
    def paths(self) -> dict[Pair, tuple[Hop, ...]]:
        """Return the hops of a message between each two GPUs, and from each GPU to the network."""
        inside = {(a, b): self.cluster.path(a, b) for a, b in product(range(GPUS), repeat=2)}
        return {pair: path for pair, path in inside.items() if path} | {
            (gpu, OUTSIDE): self.cluster.to_network(gpu) for gpu in range(GPUS)
        }

    def second(self, pair: Pair, other: str) -> tuple[Hop, ...]:
        """Return the hops of the message that one of OTHERS sends at the same time."""
        a, b = pair
        if other == "the GPU beside it":
            return self.paths[a ^ 1, b if b == OUTSIDE else b ^ 1]
        if other == "the receiver":
            return self.cluster.from_network(a) if b == OUTSIDE else self.paths[b, a]
        return ()

    def outcomes(self, pair: Pair) -> list[Speed]:
        """Return how fast a message is while each of OTHERS sends."""
        found = []
        for other in OTHERS:
            sent = Counter([*self.paths[pair], *self.second(pair, other)])
            rates = [hop.bandwidth / sent[hop] for hop in self.paths[pair]]
            narrow = [at for at, rate in enumerate(rates) if rate == min(rates)]
            found.append(Speed(min(rates), tuple(narrow)))
        return found

    def rows(self) -> Iterator[list[str]]:
        """Yield a row for each kind of path: which pairs take it, and how fast it is."""
        found: dict[tuple[str, ...], dict[tuple[str, ...], list[str]]] = {}
        goals: dict[tuple[str, ...], dict[int, list[str]]] = {}
        for (a, b), path in sorted(self.paths.items()):
            kinds = " → ".join(part.rstrip(" 0123456789") for part in hops.parts(path))
            alone, *others = self.outcomes((a, b))
            key = (kinds, *alone.told, *(it.told[0] for it in others))
            goal = "another server" if b == OUTSIDE else str(b)
            goals.setdefault(key, {}).setdefault(a, []).append(goal)
        for key, pairs in goals.items():
            for a, reached in pairs.items():
                found.setdefault(key, {}).setdefault(tuple(reached), []).append(str(a))
        for (kinds, *told), groups in found.items():
            said = [f"{' '.join(some)} to {' '.join(reached)}" for reached, some in groups.items()]
            direct = DIRECT[not self.direct]
            yield [self.name, direct, kinds, "; ".join(said), *told]


@dataclass(frozen=True)
class Drawing:
    """Where the parts and wires of a server stand in the picture."""

    server: Server

    @property
    def wires(self) -> tuple[network.Wire, ...]:
        """Return the wires of the node."""
        return self.server.cluster.node.wires

    @cached_property
    def parts(self) -> dict[str, float]:
        """Return how far right each part stands: above what it is wired to."""
        at = {f"GPU {gpu}": (gpu + 0.5) * COLUMN for gpu in range(GPUS)}
        for kind, below in {"PCIe switch": "GPU", "CPU": "PCIe switch"}.items():
            near: dict[str, list[float]] = {}
            for wire in self.wires:
                if wire.a.startswith(below) and wire.b.startswith(kind):
                    near.setdefault(wire.b, []).append(at[wire.a])
            at |= {part: sum(places) / len(places) for part, places in near.items()}
        host = {wire.a: at[wire.b] for wire in self.wires if wire.b.startswith("CPU")}
        cards: dict[str, list[str]] = {}
        for wire in self.wires:
            if wire.a.startswith("NIC") and wire.b != NETWORK:
                cards.setdefault(wire.b, []).append(wire.a)
        for switch, some in cards.items():  # aside of the switch's way up to the processor
            first = at[switch] + (11 if at[switch] > host[switch] else 9 - 20 * len(some))
            at |= {card: first + 20 * place for place, card in enumerate(some)}
        return at

    def width(self, bandwidth: float) -> float:
        """Return how wide a wire is drawn."""
        rates = nodes.rates_of_a_gpu(self.server.cluster.node)
        kind = next(kind for kind in WIDEST if kind in rates)
        return round(WIDEST[kind] * bandwidth / rates[kind], 2)

    def ends(self, wire: network.Wire) -> list[float]:
        """Return where a wire begins and ends, and how far it bends downwards."""
        y1, y2 = height(wire.a), height(wire.b)
        if y1 != y2 or not wire.a.startswith("GPU"):
            x1 = self.parts.get(wire.a, self.parts.get(wire.b, 0.0))
            return [x1, y1, self.parts.get(wire.b, x1), y2, 0]  # a bar is everywhere
        x1, x2 = self.parts[wire.a], self.parts[wire.b]
        a, b = self.beside(wire), self.beside(replace(wire, a=wire.b, b=wire.a))
        return [x1 + a, y1 + UNDER, x2 + b, y2 + UNDER, BEND * abs(x1 - x2) / COLUMN]

    def beside(self, wire: network.Wire) -> float:
        """Return how far from its GPU's middle an NVLink leaves: bows of a GPU do not cross."""
        here = int(wire.a.split()[-1])
        others = {}
        for each in self.wires:
            ends = {each.a, each.b}
            if wire.a in ends and all(end.startswith("GPU") for end in ends):
                (other,) = ends - {wire.a}
                others[int(other.split()[-1])] = self.width(each.bandwidth)
        order = sorted(others, key=lambda other: (other > here, here - other))
        before = order[: order.index(int(wire.b.split()[-1]))]
        middle = sum(others[each] for each in before) + self.width(wire.bandwidth) / 2
        return round(1.5 * (middle - sum(others.values()) / 2), 1)

    def drawn(self) -> dict[str, object]:
        """Return what server.js draws."""
        number = {frozenset((wire.a, wire.b)): at for at, wire in enumerate(self.wires)}
        outcomes: dict[tuple[object, ...], int] = {}
        empty: list[list[int] | None] = [None for _ in range(GPUS * (GPUS + 1))]
        ways: list[list[list[int] | None]] = []
        ends: list[list[list[int] | None]] = []
        for server in (self.server, replace(self.server, direct=False)):
            ways.append([*empty])
            ends.append([*empty])
            for (a, b), path in server.paths.items():
                steps = list(pairwise(hops.parts(path)))
                at = [number[frozenset(step)] for step in steps]
                ways[-1][a * (GPUS + 1) + b] = [
                    2 * wire + (self.wires[wire].a != start)
                    for wire, (start, _) in zip(at, steps, strict=True)
                ]
                ends[-1][a * (GPUS + 1) + b] = [
                    outcomes.setdefault(
                        (*it.told, round(NBYTES / it.rate, 6), it.narrowest), len(outcomes)
                    )
                    for it in server.outcomes((a, b))
                ]
        rates = dict.fromkeys((wire.link.kind, wire.bandwidth) for wire in self.wires)
        links = nodes.rates_of_a_gpu(self.server.cluster.node).get("NVLink", 0)
        return {
            "name": self.server.name,
            "links": links and units.text(links, "B/s"),
            "parts": [[part, x, height(part)] for part, x in self.parts.items()],
            "bar": any(SWITCH in (wire.a, wire.b) for wire in self.wires),
            "wires": [
                [wire.a, wire.b, wire.link.kind, self.width(wire.bandwidth), *self.ends(wire)]
                for wire in self.wires
            ],
            "rates": [
                [kind, units.text(rate, "B/s"), self.width(rate)]
                for kind, rate in sorted(rates, key=itemgetter(1), reverse=True)
            ],
            "ways": ways,
            "ends": ends,
            "outcomes": list(outcomes),
        }


def height(part: str) -> int:
    """Return how far down a part stands."""
    return ROWS[part.rstrip(" 0123456789")]


class TwoGpus(MovingPicture):
    """The servers and their messages: a picture on a page, a table in a kernel."""

    def html(self) -> str:
        """Return picture and table for a page; without JavaScript there is no picture."""
        servers = [Drawing(Server(name)).drawn() for name in SERVERS]
        data = {"servers": servers, "start": START, "gpus": GPUS}
        packed = html.escape(json.dumps(data, separators=(",", ":"), ensure_ascii=False))
        picture = (
            '<p class="server-state" aria-live="polite"></p><p class="server-clock">'
            '<button type="button">Send 1 GB</button> <output></output></p>'
            f'<div class="server-picture" data-server="{packed}"></div>'
        )
        hands = (
            radios("server-machine", "Server", SERVERS)
            + radios("server-direct", "GPUDirect", DIRECT)
            + radios("server-other", "At the same time sends", OTHERS)
        )
        return moving("server", "A path through the server", picture, self.table(), hands=hands)

    def table(self) -> str:
        """Return the numbers as an HTML table."""
        header = ["server", "GPUDirect", "path", "from GPU to GPU", "carries", "1 GB takes"]
        header += [f"while {other} sends too" for other in OTHERS[1:]]
        both = (Server(name, direct) for name in SERVERS for direct in (True, False))
        return table([header, *(row for server in both for row in server.rows())])
