"""The built site as one PDF: a title, the contents with page numbers, and every page in the order of _toc.yml.

A browser prints the pages; explorers print their first state. Where each chapter begins is known once all are printed,
so the contents come last and go first, and the numbers at the foot are written then.
"""

import html
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import chromium
import pikepdf
import yaml
from pypdf import PdfReader, PdfWriter
from pypdf.generic import (
    ArrayObject,
    BooleanObject,
    DecodedStreamObject,
    DictionaryObject,
    NameObject,
    NumberObject,
    TextStringObject,
)

from shardlab.files.terminal import no_arguments

ROOT = Path(__file__).resolve().parents[1]
SITE, TARGET = ROOT / "_build" / "html", ROOT / "_build" / "one-model-many-gpus.pdf"
SCALE, SIDES = 0.75, 16  # of a pixel; mm left and right
PAPER = {"format": "A4", "margin": {"top": "18mm", "bottom": "20mm", "left": f"{SIDES}mm", "right": f"{SIDES}mm"}}
WIDTH = round((210 - 2 * SIDES) / 25.4 * 96 / SCALE)  # pixels between the margins: figures are drawn so wide
FOOT = "Q /Artifact BMC BT /Foot 7 Tf {x:.1f} 28 Td ({number}) Tj ET EMC"  # no tag; a point is 1/72 inch, from below
DIGIT = 7 * 0.556  # points: how wide one of Helvetica is
# What a reader of paper cannot use: the frame of the site, buttons, links beside headings.
ON_PAPER = """
    .bd-header, .bd-sidebar-primary, .bd-sidebar-secondary, .bd-header-article, .prev-next-footer, .bd-footer,
    .headerlink, .copybtn, #pst-skip-link, .pst-scroll-pixel-helper { display: none !important; }
    .bd-main, .bd-content, .bd-article-container { max-width: none !important; padding: 0 !important; }
    .wide, .text_html, .pst-scrollable-table-container { overflow: visible !important; }
    pre { white-space: pre-wrap !important; overflow: visible !important; }
    table, details, .wide, .cell_output { break-inside: auto !important; }
    table.numbers { font-size: 0.7rem !important; }
    table.numbers td { white-space: normal !important; }
    figure, .explorer, tr, .admonition, div.cell_input, pre { break-inside: avoid; }
    h1, h2, h3, summary { break-after: avoid; }
"""
DRAW = """async () => {
    document.documentElement.dataset.theme = "light";
    document.querySelectorAll(".cell_output details").forEach((details) => { details.open = true; });
    for (const block of document.querySelectorAll(".explorer")) {
        block.scrollIntoView();
        while (!("state" in block.dataset)) await new Promise((wake) => setTimeout(wake, 20));
    }
    await document.fonts.ready;
    await window.shardlabFormulas?.();
}"""


class Chapter(NamedTuple):
    """A page of the book: the part that begins with it, if one does, and what was printed."""

    part: str
    title: str
    pages: PdfReader


def contents(toc: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(caption of the part that begins here, page) in the order of the book."""
    yield "", toc["root"]
    for part in toc["parts"]:
        for number, entry in enumerate(part["chapters"]):
            yield ("" if number else part["caption"]), entry["file"]


def printed(tab: Any, address: str) -> tuple[str, PdfReader]:
    """Title and paper of a page of the site, laid out for paper before its figures are drawn."""
    tab.goto(address)
    tab.add_style_tag(content=ON_PAPER)
    tab.evaluate(DRAW)
    title = tab.locator("h1").first.evaluate("h1 => h1.firstChild.textContent")
    return title.strip(), PdfReader(io.BytesIO(tab.pdf(**PAPER, scale=SCALE, tagged=True, outline=True)))


def from_html(tab: Any, body: str, **options: Any) -> PdfReader:
    """Paper of what is written here."""
    tab.set_content(f"<body style='font-family: sans-serif'>{body}</body>")
    return PdfReader(io.BytesIO(tab.pdf(**PAPER, **options)))


def front(title: str, author: str, chapters: list[Chapter], first: int) -> str:
    """The title, and on new paper the contents; the first chapter begins on page `first`."""
    lines, page = [], first
    for chapter in chapters:
        if chapter.part:
            lines.append(f"<h3>{html.escape(chapter.part)}</h3>")
        row = "display: flex; justify-content: space-between; margin: 0.3em 0"
        lines.append(f"<div style='{row}'><span>{html.escape(chapter.title)}</span><span>{page}</span></div>")
        page += len(chapter.pages.pages)
    name = f"<h1 style='margin-top: 35%; font-size: 3em'>{html.escape(title)}</h1><p>{html.escape(author)}</p>"
    return f"{name}<h2 style='break-before: page'>Contents</h2>{''.join(lines)}"


def bind(tab: Any, settings: dict[str, Any], chapters: list[Chapter]) -> PdfWriter:
    """Front matter and chapters in one document, with numbers at the foot and an outline to click on."""
    words = settings["title"], settings["author"], chapters
    ahead = len(from_html(tab, front(*words, 1)).pages)  # how long the contents are does not depend on their numbers
    book = PdfWriter()
    parts = [from_html(tab, front(*words, ahead + 1)), *(chapter.pages for chapter in chapters)]
    for part, name in zip(parts, ["Contents", *(chapter.title for chapter in chapters)], strict=True):
        first = len(book.pages)
        book.append(part, outline_item=name, import_outline=True)
        keep_tags(book, part, list(book.pages)[first:])
    write_numbers(book)
    book.add_metadata({"/Title": settings["title"], "/Author": settings["author"]})
    book.root_object[NameObject("/Lang")] = TextStringObject("en")
    book.compress_identical_objects()
    return book


def write_numbers(book: PdfWriter) -> None:
    """Write its number at the foot of every page but the title; what is on the page stays compressed as it is."""
    font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    foot = book._add_object(DictionaryObject({NameObject(key): NameObject(name) for key, name in font.items()}))
    before = book._add_object(stream("q"))
    for number, page in list(enumerate(book.pages, start=1))[1:]:
        fonts = page["/Resources"].setdefault(NameObject("/Font"), DictionaryObject()).get_object()
        fonts[NameObject("/Foot")] = foot
        x = (float(page.mediabox.width) - DIGIT * len(str(number))) / 2
        after = book._add_object(stream(FOOT.format(x=x, number=number)))
        page[NameObject("/Contents")] = ArrayObject([before, page.raw_get("/Contents"), after])


def stream(operators: str) -> DecodedStreamObject:
    """Operators of a page as an object of a document."""
    made = DecodedStreamObject()
    made.set_data(operators.encode())
    return made


def keep_tags(book: PdfWriter, part: PdfReader, pages: list[Any]) -> None:
    """Join the tags of a part, by which a screen reader finds headings, lists and tables, to the tags of the book.

    Each page, and each link on it, has the number of its tags; the numbers of a part go on where those before it ended.
    """
    if "/StructTreeRoot" not in part.root_object:
        return
    root = book.root_object
    if "/StructTreeRoot" not in root:
        tree = DictionaryObject({NameObject("/Nums"): ArrayObject()})
        empty = {"/Type": NameObject("/StructTreeRoot"), "/K": ArrayObject(), "/ParentTree": tree}
        whole = DictionaryObject({NameObject(key): value for key, value in empty.items()})
        root[NameObject("/StructTreeRoot")] = book._add_object(whole)
        root[NameObject("/MarkInfo")] = DictionaryObject({NameObject("/Marked"): BooleanObject(True)})
    whole, numbers = root["/StructTreeRoot"], root["/StructTreeRoot"]["/ParentTree"]["/Nums"]
    taken = 1 + max([-1, *map(int, numbers[::2])])
    lift(part.root_object["/StructTreeRoot"])
    copy = part.root_object["/StructTreeRoot"].clone(book)
    for top in copy["/K"] if isinstance(copy["/K"], list) else [copy.raw_get("/K")]:
        top.get_object()[NameObject("/P")] = whole.indirect_reference
        whole["/K"].append(top)
    for number, tags in numbered(copy["/ParentTree"]):
        numbers += [NumberObject(taken + number), tags]
    for page, original in zip(pages, part.pages, strict=True):
        if "/StructParents" in original:  # pypdf leaves it out of its copies
            page[NameObject("/StructParents")] = NumberObject(taken + int(original["/StructParents"]))
        for link in [each.get_object() for each in page.get("/Annots", [])]:
            if "/StructParent" in link:
                link[NameObject("/StructParent")] = NumberObject(taken + int(link["/StructParent"]))


def lift(root: Any) -> None:
    """Give the text of tags that mean nothing to the tags above them: each letter of a formula has three of those."""
    heirs: dict[int, Any] = {}
    inherit(root, heirs)
    for leaves in leaf_lists(root["/ParentTree"]):
        for tags in (each.get_object() for each in leaves[1::2]):
            if isinstance(tags, list):
                tags[:] = [heir(tag, heirs) for tag in tags]


def inherit(tag: Any, heirs: dict[int, Any]) -> None:
    """Put the text of meaningless tags below a tag in their place, if it is on the same page; note who has it now."""
    below = tag.raw_get("/K") if "/K" in tag else ArrayObject()
    kids = ArrayObject()
    for kid in below.get_object() if isinstance(below.get_object(), list) else [below]:
        inner = kid.get_object()
        if isinstance(inner, dict) and "/S" in inner:
            inherit(inner, heirs)
            if is_text(inner) and same_page(tag, inner):
                heirs[inner.indirect_reference.idnum] = tag.indirect_reference
                kids += inner["/K"]
                continue
        kids.append(kid)
    tag[NameObject("/K")] = kids


def is_text(tag: Any) -> bool:
    """Whether a tag, once it is lifted, has no meaning and nothing but text below it."""
    return bool(tag["/S"] == "/NonStruct" and "/Pg" in tag and all(isinstance(kid, int) for kid in tag["/K"]))


def same_page(tag: Any, text: Any) -> bool:
    """Whether a tag is on the page of a text, or on none yet: then it goes there."""
    page = text.raw_get("/Pg")
    return "/S" in tag and bool(tag.setdefault(NameObject("/Pg"), page) == page)


def heir(tag: Any, heirs: dict[int, Any]) -> Any:
    """The tag that has the text of this one now."""
    while getattr(tag, "idnum", 0) in heirs:
        tag = heirs[tag.idnum]
    return tag


def numbered(tree: Any) -> Iterator[tuple[int, Any]]:
    """(number, value) of a tree of numbers."""
    for leaves in leaf_lists(tree):
        yield from ((int(number), tags) for number, tags in zip(leaves[::2], leaves[1::2], strict=True))


def leaf_lists(tree: Any) -> Iterator[list[Any]]:
    """The lists of numbers and values, by turns, of a tree of numbers: branches are /Kids, leaves are /Nums."""
    for branch in tree.get("/Kids", []):
        yield from leaf_lists(branch.get_object())
    yield tree.get("/Nums", [])


def make(browser: Any, site: Path, target: Path, toc: dict[str, Any], settings: dict[str, Any]) -> Path:
    """Print the pages of `toc` out of `site` into `target`."""
    tab = browser.new_context(viewport={"width": WIDTH, "height": 1400}, color_scheme="light").new_page()
    tab.emulate_media(media="print")
    chapters = []
    for part, page in contents(toc):
        begun = time.monotonic()
        chapters.append(Chapter(part, *printed(tab, f"{site.as_uri()}/{page}.html")))
        print(f"{page}: {len(chapters[-1].pages.pages)} pages, {time.monotonic() - begun:.0f} s", flush=True)
    bind(tab, settings, chapters).write(target)
    with pikepdf.open(target, allow_overwriting_input=True) as book:  # pypdf compresses no lists and dictionaries
        book.save(target, object_stream_mode=pikepdf.ObjectStreamMode.generate)
    return target


if __name__ == "__main__":
    no_arguments(__doc__)
    toc, settings = (yaml.safe_load((ROOT / name).read_text()) for name in ("_toc.yml", "_config.yml"))
    with chromium.started() as browser:
        print(make(browser, SITE, TARGET, toc, settings))
