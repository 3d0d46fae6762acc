"""The built site as one PDF: a title, the contents with page numbers, and every page in the order of _toc.yml.

A browser prints the pages; explorers print their first state. Where each chapter begins is known once all are printed,
so the contents come last and go first. The numbers at the foot are printed on empty pages and laid over the others.
"""

import html
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import chromium
import yaml
from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, BooleanObject, DictionaryObject, NameObject, NumberObject, TextStringObject

from shardlab.files.terminal import no_arguments

ROOT = Path(__file__).resolve().parents[1]
SITE, TARGET = ROOT / "_build" / "html", ROOT / "_build" / "one-model-many-gpus.pdf"
SCALE, SIDES = 0.75, 16  # of a pixel; mm left and right
PAPER = {"format": "A4", "margin": {"top": "18mm", "bottom": "20mm", "left": f"{SIDES}mm", "right": f"{SIDES}mm"}}
WIDTH = round((210 - 2 * SIDES) / 25.4 * 96 / SCALE)  # pixels between the margins: figures are drawn so wide
FOOT = '<div style="font-size: 9px; width: 100%; text-align: center"><span class="pageNumber"></span></div>'
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
    if (window.MathJax?.startup) await MathJax.startup.promise;
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
    empty = "<div style='break-after: page'>&nbsp;</div>" * (len(book.pages) - 1) + "&nbsp;"
    numbers = from_html(tab, empty, display_header_footer=True, header_template="<span></span>", footer_template=FOOT)
    for page, number in list(zip(book.pages, numbers.pages, strict=True))[1:]:  # none on the title
        page.merge_page(number)
    book.add_metadata({"/Title": settings["title"], "/Author": settings["author"]})
    book.root_object[NameObject("/Lang")] = TextStringObject("en")
    book.compress_identical_objects()
    return book


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


def numbered(tree: Any) -> Iterator[tuple[int, Any]]:
    """(number, value) of a tree of numbers, whose branches are /Kids and whose leaves are /Nums."""
    for branch in tree.get("/Kids", []):
        yield from numbered(branch.get_object())
    leaves = tree.get("/Nums", [])
    yield from ((int(number), tags) for number, tags in zip(leaves[::2], leaves[1::2], strict=True))


def make(browser: Any, site: Path, target: Path, toc: dict[str, Any], settings: dict[str, Any]) -> Path:
    """Print the pages of `toc` out of `site` into `target`."""
    tab = browser.new_context(viewport={"width": WIDTH, "height": 1400}, color_scheme="light").new_page()
    tab.emulate_media(media="print")
    chapters = [Chapter(part, *printed(tab, f"{site.as_uri()}/{page}.html")) for part, page in contents(toc)]
    bind(tab, settings, chapters).write(target)
    return target


if __name__ == "__main__":
    no_arguments(__doc__)
    toc, settings = (yaml.safe_load((ROOT / name).read_text()) for name in ("_toc.yml", "_config.yml"))
    with chromium.started() as browser:
        print(make(browser, SITE, TARGET, toc, settings))
