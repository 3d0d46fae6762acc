"""Every page describes itself to whoever shares a link to it; only the title page loads the moving picture."""

from types import SimpleNamespace
from typing import Any

import pytest
import shardlab_face
from docutils.frontend import get_default_settings
from docutils.parsers.rst import Parser
from docutils.utils import new_document

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


def test_with_an_address_a_link_shows_the_picture() -> None:
    tags, _ = described(SHORT, "https://example.org/")
    assert 'content="https://example.org/book/page.html"' in tags
    assert 'content="https://example.org/_static/shardlab/title.png"' in tags
    assert shardlab_face.PICTURE.exists()


def test_the_title_page_alone_loads_the_picture_that_moves() -> None:
    assert described(SHORT, body='<div class="cuts">')[1] == ["shardlab/title.css", "shardlab/title.js"]
