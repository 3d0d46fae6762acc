"""The grammar of what `nvidia-smi topo -m` prints: a header, and a row for each of its devices.

A legend below every such matrix explains its letters: NV# is # NVLinks; PIX and PXB stay below the
PCIe switches of one processor; PHB and NODE pass through a processor; SYS (SOC in old drivers)
passes from one processor to another. Why that matters:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from shardlab.files.arguments import checked

BELOW_A_SWITCH, BELOW_A_PROCESSOR = ("PIX", "PXB"), ("PIX", "PXB", "PHB", "NODE")
NEAREST_FIRST = (*BELOW_A_PROCESSOR, "SYS", "SOC")
WORDS = ("X", *NEAREST_FIRST)
CELL = re.compile(rf"NV\d{{1,3}}|{'|'.join(WORDS)}")
ROW = re.compile(rf"(?:NV\d{{1,3}}(?![\d,-])|{'|'.join(WORDS)})+(\d[\d,-]*)?")
DEVICE = r"(?:GPU|NIC)\d+|mlx\d+_\d+"
MAX_DEVICES = 256
MAX_PROBLEM = 120  # characters of what is wrong
# What other tools write in their cells, or above them.
OTHER_TOOLS = {
    "nvidia-smi topo -p2p": r"\b(OK|CNS|GNS|TNS|NS|CSN)\b",
    "rocm-smi or amd-smi": r"\b(XGMI|ROCm|AMDSMI|HOPS|ENABLED|BDF)\b",
    "xpu-smi topology -m": r"\b(MDF|XL\d+|XeLink|GPU \d+/\d+)\b",
    "npu-smi info -t topo": r"\b(NPU\d+|HCCS)\b",
}


@dataclass(frozen=True)
@checked
class Matrix:
    """The printed matrix."""

    cells: dict[tuple[str, str], str]  # (device, device) -> the letters
    processor: dict[str, str]  # GPU -> its NUMA node, else its cores, where the output gives them

    @property
    def devices(self) -> list[str]:
        """GPUs and network cards, in order."""
        return list(dict.fromkeys(row for row, _ in self.cells))

    @property
    def gpus(self) -> list[str]:
        """The GPUs, in order."""
        return [device for device in self.devices if re.fullmatch(r"GPU\d+", device)]

    @property
    def cards(self) -> list[str]:
        """The network cards, in order."""
        return [device for device in self.devices if device not in self.gpus]

    @property
    def nearest_cards(self) -> dict[str, list[str]]:
        """The network cards of each GPU to which no other is nearer."""
        found = {}
        for gpu in self.gpus:
            ways = {card: NEAREST_FIRST.index(self.cells[gpu, card]) for card in self.cards}
            found[gpu] = [card for card, way in ways.items() if way == min(ways.values())]
        return found


@checked
def read(text: str) -> Matrix:
    """Read the cells between GPUs and network cards.

    Colour codes are left out, and words that run together are parted. Errors: ValueError for a text
    without such a matrix, with the row and column where it is none.
    """
    lines = [line.split() for line in re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text).splitlines()]
    lines = [words for words in lines if words]
    while lines and not re.match(r"GPU\d", lines[0][0]):
        del lines[0]
    if not lines:
        raise _wrong("no line begins with GPU0", text)
    columns = _columns(lines[0], {words[0] for words in lines[1:]}, text)
    rows: dict[str, list[str]] = {}
    for words in lines[1:]:
        if words[0] in columns and words[0] not in rows:
            rows[words[0]] = words[1:]
        elif len(rows) < len(columns) or re.fullmatch(DEVICE, words[0]):
            raise _wrong(f"the line {' '.join(words)[:40]!r} is no row of the header", text)
        elif words[0].startswith("Legend"):
            break
    if missing := [column for column in columns if column not in rows]:
        raise _wrong(f"the header has {missing[0]!r}, and no row begins with it", text)
    cells: dict[tuple[str, str], str] = {}
    told = {}
    for row, words in rows.items():
        found, told[row] = _cells(row, words, columns, text)
        cells |= {(row, column): cell for column, cell in zip(columns, found, strict=True)}
    _check(cells, text)
    return Matrix(cells, _processors({row: rest for row, rest in told.items() if rest}))


def _processors(told: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the NUMA nodes, if each GPU has one; else the cores. told: cores, NUMA node."""
    numa = {row: rest[1] for row, rest in told.items() if rest[1:] and rest[1].isdecimal()}
    cores = {row: rest[0] for row, rest in told.items() if rest[0] != "N/A"}
    return numa if len(numa) >= len(cores) else cores


def _wrong(problem: str, text: str) -> ValueError:
    tools = (f"`{tool}`" for tool, sign in OTHER_TOOLS.items() if re.search(sign, text))
    tool = next(tools, "")
    shown = "".join(each if each.isprintable() else "?" for each in problem[:MAX_PROBLEM])
    source = f"{tool} wrote this: " if tool else ""
    return ValueError(
        f"{shown}; {source}give all that `nvidia-smi topo -m > topo.txt` prints into a file, "
        "its first line included"
    )


def _columns(header: Sequence[str], labels: Collection[str], text: str) -> list[str]:
    """Return the devices of the header, which end where the cores of the processor begin."""
    known = [re.escape(each) for each in sorted(labels, key=len, reverse=True)]
    name = re.compile("|".join([*known, DEVICE, "CPU"]))
    columns: list[str] = []
    for word in header:
        glued = word not in labels and re.fullmatch(rf"(?>{name.pattern})+", word)
        columns += name.findall(word) if glued else [word]
    columns = columns[: columns.index("CPU")] if "CPU" in columns else columns
    cell = next(filter(CELL.fullmatch, columns), "")
    if cell or len(columns) > MAX_DEVICES:
        found = f"the cell {cell}" if cell else f"{len(columns)} devices"
        raise _wrong(f"the first line that begins with a GPU has {found}, and is no header", text)
    if twice := [column for column in columns if columns.count(column) > 1]:
        raise _wrong(f"the header has {twice[0]!r} twice", text)
    return columns


def _cells(
    row: str, words: Sequence[str], columns: Sequence[str], text: str
) -> tuple[list[str], list[str]]:
    """Part the words of a row into its cells and what follows them."""
    parts = [part for word in words for part in _parted(word)]
    cells = list(takewhile(CELL.fullmatch, parts))
    rest = parts[len(cells) :]
    if len(cells) < len(columns) and not re.match(r"\d|N/A|$", (rest or [""])[0]):
        column = columns[len(cells)]
        raise _wrong(f"row {row}, column {column}: {rest[0][:20]!r} is unknown", text)
    if len(cells) != len(columns):
        raise _wrong(f"row {row} has {len(cells)} cells for {len(columns)} columns", text)
    return cells, rest


def _parted(word: str) -> list[str]:
    """Part cells that run together, the last one perhaps with cores; NV12 and cores are not."""
    whole = ROW.fullmatch(word)
    return [*CELL.findall(word), *filter(None, whole.groups())] if whole else [word]


def _check(cells: Mapping[tuple[str, str], str], text: str) -> None:
    """Refuse a matrix that has no X where a device meets itself, or is not symmetric."""
    for (row, column), cell in cells.items():
        where = f"row {row}, column {column}"
        if (cell == "X") != (row == column):
            raise _wrong(f"{where}: {cell}, but X is where a device meets itself", text)
        if cell != cells[column, row]:
            raise _wrong(f"{where}: {cell}, but the other way round {cells[column, row]}", text)
        if cell.startswith("NV") and not (row + column).replace("GPU", "").isdecimal():
            raise _wrong(f"{where}: {cell}, but NVLinks join GPUs", text)
