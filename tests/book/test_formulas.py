"""A simple formula reads well before MathJax sets it, and takes the same room."""

import pytest
import shardlab_formulas
import shardlab_light

FRACTION = '<span class="over"><span>{}</span><span>{}</span></span>'


@pytest.mark.parametrize(
    ("tex", "read"),
    [
        (r"\frac{b}{2} \cdot F/\beta", FRACTION.format("b", "2") + " · F/β"),
        (r"\frac{N-1}{t\,p}", FRACTION.format("N-1", "tp")),
        (r"h^2 &lt; t_{ij}", "h<sup>2</sup> &lt; t<sub>ij</sub>"),
        (r"\lambda", "λ"),
        (r"\frac{N}{F_\text{peak}\,u}", FRACTION.format("N", "F<sub>peak</sub>u")),
        (r"\sqrt{N}", ""),
    ],
)
def test_a_simple_formula_can_be_read_before_it_is_set(tex: str, read: str) -> None:
    formula = rf'<span class="math notranslate nohighlight">\({tex}\)</span>'
    light = shardlab_light.light(shardlab_light.light(formula, ""), "")
    assert light.startswith(rf'{formula.split(">")[0]} data-tex="\({tex}\)"><i style="width: ' if read else formula)
    assert light.endswith(f'em">{read}</i></span>' if read else formula)


# Pixels that MathJax 3.2 took in a browser, in text of 17 pixels.
@pytest.mark.parametrize(("tex", "pixels"), [
    ("V", 14.4), ("-10^8", 39.8), (r"\frac{p-1}{m+p-1}", 53.6), ("4PT/F", 59.9), (r"2\,(N-1)/N \cdot X/\beta", 151.0),
    (r"M \approx 16\,P + T\,(34\,L h + 12\,V)", 238.3), ("(p - 1 - s)(t_F + t_B)", 158.5),
])  # fmt: skip
def test_it_is_as_wide_as_mathjax_will_make_it(tex: str, pixels: float) -> None:
    assert 17 * shardlab_formulas.EM * shardlab_formulas.width(tex) == pytest.approx(pixels, abs=2.1)
