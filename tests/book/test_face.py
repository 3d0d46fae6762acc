"""Every page describes itself to whoever shares a link to it; it loads no picture that it lacks."""

from types import SimpleNamespace
from typing import Any

import pytest
import shardlab_face
from docutils.frontend import get_default_settings
from docutils.parsers.rst import Parser
from docutils.utils import new_document

from shardlab.explorers import buckets, memory_timeline, moving, pipeline, race, server, title, wires

SHORT = "Two GPUs add up."
LONG = f"{SHORT} " + "A sentence that goes on for long " * 8 + "."


def described(paragraph: str, base: str = "", body: str = "") -> tuple[str, list[str]]:
    """The tags of a page with one paragraph, and the files that it loads."""
    document = new_document("page", get_default_settings(Parser))
    Parser().parse(paragraph, document)
    config = SimpleNamespace(html_baseurl=base, html_title="A Book", project="")
    files: list[str] = []
    add: Any = lambda name, **_: files.append(name)  # noqa: E731
    app: Any = SimpleNamespace(config=config, add_css_file=add, add_js_file=add)
    context = {"title": "<code>a</code> &amp; b", "body": body}
    shardlab_face.introduce(app, "book/page", "", context, document)
    return context["metatags"], files


@pytest.mark.parametrize("paragraph", [SHORT, LONG])
def test_a_page_is_described_by_its_first_sentences(paragraph: str) -> None:
    tags, files = described(paragraph)
    assert f'<meta name="description" content="{SHORT}">' in tags
    assert f'<meta property="og:description" content="{SHORT}">' in tags
    assert '<meta property="og:title" content="a &amp; b">' in tags
    assert "og:image" not in tags  # it would need the address of the book
    assert files == []


@pytest.mark.parametrize("slash", ["", "/"])
def test_with_an_address_a_link_shows_the_picture(slash: str) -> None:
    tags, _ = described(SHORT, f"https://example.org/here{slash}")
    assert 'content="https://example.org/here/book/page.html"' in tags
    assert 'content="https://example.org/here/_static/shardlab/title.png"' in tags
    assert shardlab_face.PICTURE.exists()


def test_a_page_loads_the_files_of_the_pictures_that_it_has() -> None:
    assert described(SHORT, body=title.Cuts().html())[1] == files("moving", "title")
    assert described(SHORT, body=race.Race().html())[1] == files("moving", "race")
    assert described(SHORT, body=buckets.Buckets().html())[1] == files("moving", "buckets")
    assert described(SHORT, body=wires.Neighbours().html())[1] == files("moving", "wires")
    assert described(SHORT, body=pipeline.Tiles().html())[1] == files("moving", "pipeline")
    assert described(SHORT, body=server.TwoGpus().html())[1] == files("moving", "server")
    for name in ("planner", "missing"):  # whose data take a while to find
        assert described(SHORT, body=moving.moving(name, name, "", ""))[1] == files("moving", name)
    shown = memory_timeline.MemoryTimeline()
    assert described(SHORT, body=shown.html())[1] == files("moving", "memory_timeline")


def files(*names: str) -> list[str]:
    """Styles and scripts in the order in which a page needs them."""
    return [f"shardlab/{name}.{kind}" for name in names for kind in ("css", "js")]
