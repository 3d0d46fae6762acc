"""The one style sheet of the pages: what no page has is not in it, and everything that may be is."""

from __future__ import annotations

from pathlib import Path

import pytest
import shardlab_light
import shardlab_styles

KNOWN = {"here", "there"}


@pytest.mark.parametrize(
    ("css", "kept"),
    [
        (".here{a:b}", ".here{a:b}"),
        (".gone{a:b}", ""),
        (".here.gone{a:b}", ""),
        (".gone > p, .here p{a:b}", ".here p{a:b}"),
        (":is(.gone, .here) b{a:b}", ":is(.gone, .here) b{a:b}"),
        (".here:not(:is(.gone)){a:b}", ".here:not(:is(.gone)){a:b}"),
        ('[href=".gone"]{a:b}', '[href=".gone"]{a:b}'),
        ("@media print{.gone{a:b}.there{a:b}}", "@media print{.there{a:b}}"),
        ("@media print{.gone{a:b}}", ""),
        ("@font-face{font-family:x}", "@font-face{font-family:x}"),
        ('@charset "utf-8";p{a:b}', "p{a:b}"),
    ],
)
def test_a_rule_stays_if_something_may_fit_it(css: str, kept: str) -> None:
    rules = shardlab_styles.tinycss2.parse_stylesheet(css)
    assert "".join(shardlab_styles.used(rules, KNOWN)) == kept


def test_all_style_sheets_are_one_in_their_order_and_find_their_fonts(tmp_path: Path) -> None:
    (tmp_path / "styles").mkdir()
    (tmp_path / "shardlab").mkdir()
    (tmp_path / "basic.css").write_text("p{a:1} .never{a:1} .later{a:1}")
    (tmp_path / "shardlab" / "book.css").write_text('p{a:2} @font-face{src:url("x.woff2")}')
    (tmp_path / "made.js").write_text('element.classList.add("later")')
    name = shardlab_styles.written(tmp_path, ['<p class="here">'])
    text = (tmp_path / name.split("?")[0]).read_text()
    assert text == "p{a:1}.later{a:1}p{a:2}@font-face{src:url(../shardlab/x.woff2)}"


def test_a_page_links_to_it_once_and_a_second_build_changes_nothing() -> None:
    sheets = ["styles/theme.css?digest=1", "shardlab/title.css?v=2", "mystnb.3a.css", "sphinx-thebe.css"]
    page = "".join(f'\n<link rel="stylesheet" href="../_static/{sheet}" />' for sheet in sheets)
    first = shardlab_styles.linked(page, "styles/pages.css?v=1")
    assert first.count("<link") == 2
    assert first.index("../_static/styles/pages.css?v=1") < first.index("title.css")
    assert shardlab_styles.linked(first, "styles/pages.css?v=2") == first.replace("pages.css?v=1", "pages.css?v=2")


def test_no_script_blocks_a_page_and_what_a_page_adds_to_is_there() -> None:
    page = '<script src="_static/documentation_options.js?v=1"></script>\n<script src="a.js"></script>'
    light = shardlab_light.light(page + '<script async src="b.js"></script><script>c</script>', "const OPTIONS = {};")
    scripts = '<script>const OPTIONS = {};</script>\n<script defer src="a.js"></script>'
    assert light.strip() == scripts + '<script async src="b.js"></script><script>c</script>'
    assert shardlab_light.light(light, "") == light


@pytest.mark.parametrize(("body", "early"), [('<div class="explorer">', True), ("<p>", False)])
def test_a_page_with_figures_loads_plotly_after_its_text_once(body: str, early: bool) -> None:
    page = f'<script src="../_static/shardlab/explorer.js?v=1"></script>\n<body>{body}\n</body>'
    light = shardlab_light.light(shardlab_light.light(page, ""), "")
    assert light.count('href="../_static/shardlab/plotly.min.js">\n</body>') == early
