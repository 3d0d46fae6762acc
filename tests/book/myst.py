"""Take a MyST page apart into blocks: prose, cells, listings and what else has a fence."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

HEADER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
# The fence of a block: its mark, its directive, and the rest of the line.
FENCE = re.compile(r"(`{3,}|:{3,})(?:\{([\w-]+)\})?(.*)")
OPTION = re.compile(r":([\w-]+): *(.*)")
TARGET = re.compile(r"\(.*\)=$")  # of links
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$]+\$", re.DOTALL)
SHORTER = [  # a pattern, and the words that a reader reads for it
    (re.compile(r"\{cite\}`[^`]*`"), ""),
    (re.compile(r"\{[\w:]+\}`[^`]*`"), "x"),  # a name
    (re.compile(r"\]\([^)]*\)"), "]"),  # the address of a link
]
NOT_READ = (None, "code-cell", "literalinclude", "raw")


@dataclass
class PageBlock:
    """Lines of one kind: prose, or what stands between two fences.

    directive: of the fence, None for a listing without one. inside: the block around it.
    """

    section: str
    directive: str | None = "prose"
    argument: str = ""
    mark: str = ""
    inside: "PageBlock | None" = None
    options: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The lines without blanks at both ends."""
        return "\n".join(self.lines).strip()

    @property
    def is_prose(self) -> bool:
        """Whether a reader reads it as words: paragraphs, captions, admonitions."""
        return self.directive not in NOT_READ


def blocks(page: str) -> Iterator[PageBlock]:
    """Yield the blocks of a page in order; a block within another one comes before its end."""
    prose = PageBlock(section="")
    opened: list[PageBlock] = []
    for line in HEADER.sub("", page).splitlines():
        fence = FENCE.match(line)
        bare = fence is not None and not line.removeprefix(fence[1]).strip()
        readable = not opened or opened[-1].is_prose
        if fence and bare and opened and fence[1] == opened[-1].mark:
            yield opened.pop()
        elif fence and readable:
            around = opened[-1] if opened else None
            opened.append(PageBlock(prose.section, fence[2], fence[3].strip(), fence[1], around))
        elif opened:
            _add(opened[-1], line)
        else:
            if line.startswith("## "):
                yield prose
                prose = PageBlock(section=line.removeprefix("## "))
            if not TARGET.match(line):
                prose.lines.append(line)
    yield prose


def _add(block: PageBlock, line: str) -> None:
    """Add a line to a block: an option of its directive as long as there is nothing else."""
    option = OPTION.match(line)
    if option and block.directive and not block.lines:
        block.options[option[1]] = option[2]
    else:
        block.lines.append(line)


def words(block: PageBlock) -> str:
    """What is read of a block of prose, its title too, without formulas and addresses."""
    if not block.is_prose:
        return ""
    title = block.argument if block.directive == "admonition" else ""
    text = FORMULA.sub("", f"{title}\n{block.text}")
    for pattern, left in SHORTER:
        text = pattern.sub(left, text)
    return text
