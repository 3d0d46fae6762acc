"""The built pages for everybody: WCAG 2.1 AA as far as a program can tell, with axe-core in a real browser."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from .conftest import dress, explorers
from .test_pages import EVERY_PAGE, STAYS_INSIDE

LIGHT, DARK, PHONE = ("screen", "light"), ("screen", "dark"), ("phone", "light")


def looks(*of_page: tuple[str, str]) -> pytest.MarkDecorator:
    """Every page in each of these looks."""
    return pytest.mark.parametrize("look", of_page, ids=" ".join, scope="package")


# Of words alike, in element and class, ink and size, and all that lies behind them, three are held to the contrast that
# WCAG asks for, and one where another look of the page has shown three; the other words of code are no elements
# meanwhile: less than half the time. A theme changes nothing but colours: in the dark the rules about these are asked.
AUDIT = """async (theme) => {
    const known = (window.auditedKinds ??= new Set()), most = (kind) => (known.has(kind) ? 1 : 3);
    const grounds = new Map(), alike = {}, again = [], clear = "rgba(0, 0, 0, 0) none 1 static";
    for (const one of document.querySelectorAll("body, body *")) {
        const look = getComputedStyle(one), { color, fontSize, fontWeight } = look;
        const own = [look.backgroundColor, look.backgroundImage, look.opacity, look.position].join(" ");
        grounds.set(one, (grounds.get(one.parentElement) ?? "") + (own === clear ? "" : own));
        one.toggleAttribute("data-sample", false);
        const words = [...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
        if (!words && !one.matches("input, select") || !one.checkVisibility({ visibilityProperty: true })) continue;
        const kind = [one.tagName, one.getAttribute("class"), color, fontSize, fontWeight, grounds.get(one)].join();
        alike[kind] = (alike[kind] ?? 0) + 1;
        if (alike[kind] <= most(kind)) one.toggleAttribute("data-sample", true);
        else if (one.matches(".highlight span[class]") && !one.childElementCount) again.push(one);
    }
    const texts = again.map(({ textContent }) => new Text(textContent));
    again.forEach((word, i) => word.replaceWith(texts[i]));
    axe.configure({ rules: [{ id: "color-contrast", selector: "[data-sample]" }] });
    const rules = { "label-content-name-mismatch": { enabled: true } };  // WCAG 2.5.3, which axe leaves out by default
    rules["empty-table-header"] = { enabled: false };  // no rule of WCAG; it takes a formula for nothing
    Object.keys(alike).forEach((kind) => known.add(kind));
    const asked = theme === "dark" ? { runOnly: ["color-contrast", "link-in-text-block"] } : { rules };
    const { violations } = await axe.run({ resultTypes: ["violations"], preload: false, ...asked });
    texts.forEach((text, i) => text.replaceWith(again[i]));
    return violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html}`));
}"""
# Words of a figure with a poor contrast to what lies behind their middle: the fill of the last area there, the marks
# of its pattern, or the page.
WORST = """(block) => {
    const parse = (color) => { const p = color.match(/[\\d.]+/g).map(Number); return [...p.slice(0, 3), p[3] ?? 1]; };
    const over = ([r, g, b, a], under) => [r, g, b].map((c, i) => a * c + (1 - a) * under[i]);
    const light = (rgb) => rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
    const shade = (part) => Number(getComputedStyle(part).fillOpacity) * Number(getComputedStyle(part).opacity);
    const page = parse(getComputedStyle(block).backgroundColor).slice(0, 3);
    const filled = (path) => getComputedStyle(path).fill !== "none";
    const areas = [...block.querySelectorAll(".main-svg path")].filter(filled);
    const fills = (path, under) => {
        const { fill } = getComputedStyle(path);
        if (!fill.startsWith("url")) {
            const [r, g, b, a] = parse(fill);
            return [over([r, g, b, a * shade(path)], under)];
        }
        const pattern = document.getElementById(fill.match(/#([^")]+)/)[1]);
        const colour = (part) => {
            const look = getComputedStyle(part), way = look.stroke === "none" ? "fill" : "stroke";
            const [r, g, b, a] = parse(look[way]);
            return [r, g, b, a * look[`${way}Opacity`] * look.opacity];
        };
        return [...pattern.children].reduce((found, part) =>
            [...found, over(colour(part), found.at(-1))], [under]).slice(1);
    };
    const clipped = (path, within) => {
        const group = path.closest("[clip-path]");
        if (!group) return false;
        const shape = document.querySelector(group.getAttribute("clip-path").match(/#[^"')]+/)[0]);
        const side = (name) => shape.firstElementChild[name].baseVal.value;
        const [x, y, width, height] = ["x", "y", "width", "height"].map(side);
        const point = within(group);
        return point.x < x || point.x > x + width || point.y < y || point.y > y + height;
    };
    const behind = (text) => {
        const box = text.getBoundingClientRect(), [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
        let found = [page];
        for (const path of areas) {
            if (path.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_PRECEDING) continue;
            const within = (part) => new DOMPoint(x, y).matrixTransform(part.getScreenCTM().inverse());
            if (path.isPointInFill(within(path)) && !clipped(path, within)) found = fills(path, found[0]);
        }
        return found;
    };
    const shown = (text) => text.getClientRects().length && text.textContent.trim();
    return [...block.querySelectorAll(".main-svg text")].filter(shown).map((text) => {
        const ink = parse(getComputedStyle(text).fill).slice(0, 3);
        return [text.textContent, Math.min(...behind(text).map((fill) => ratio(ink, fill)))];
    }).filter(([, least]) => least < 4.5);
}"""
UNSEEN = """async () => {
    const looks = (one) => { const s = getComputedStyle(one); return s.outlineStyle + s.outlineWidth + s.boxShadow; };
    const reachable = [...document.querySelectorAll("a[href], button, summary, input, select, [tabindex='0']")]
        .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.disabled);
    const missing = [];
    for (const one of reachable) {
        const before = looks(one);
        one.focus({ focusVisible: true, preventScroll: true });
        if (document.activeElement === one && looks(one) === before) missing.push(one.outerHTML.slice(0, 120));
        one.blur();
    }
    return missing;
}"""


@pytest.fixture(scope="module")
def axe() -> str:
    """The text of axe-core, which the wheel of axe-playwright-python carries."""
    wheel = metadata.distribution("axe-playwright-python")
    return Path(str(wheel.locate_file("axe_playwright_python/axe.min.js"))).read_text(encoding="utf-8")


@pytest.fixture
def tab(screen: Any, look: tuple[str, str]) -> Any:
    """The page in one look, which it takes as it does for a reader who turns the phone or dims the system."""
    dress(screen, *look)
    return screen


@looks(LIGHT, PHONE, DARK)
@EVERY_PAGE
def test_axe_finds_nothing(tab: Any, axe: str, look: tuple[str, str]) -> None:
    tab.evaluate(axe)
    assert tab.evaluate(AUDIT, look[1]) == []


@looks(LIGHT, DARK)
@EVERY_PAGE
def test_words_in_figures_have_enough_contrast(tab: Any) -> None:
    """4.5 to 1, WCAG 2.1, 1.4.3, against the fill behind each word, and the marks on it."""
    for block in explorers(tab):
        assert block.evaluate(WORST) == [], block.get_attribute("aria-label")


@looks(LIGHT)
@EVERY_PAGE
def test_whatever_has_the_focus_shows_it(tab: Any) -> None:
    assert tab.evaluate(UNSEEN) == []


@looks(LIGHT)
@EVERY_PAGE
def test_at_four_hundred_percent_nothing_scrolls_sideways(tab: Any) -> None:
    """A window of 1,280 pixels at 400 percent is 320 wide: WCAG 2.1, 1.4.10."""
    tab.set_viewport_size({"width": 320, "height": 256})
    tab.wait_for_function(STAYS_INSIDE, timeout=20_000)  # when its figures are drawn anew
