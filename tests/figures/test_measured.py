"""Claims with their tests, and benches behind a line."""

from shardlab.figures import measured


def test_a_test_stands_below_its_claim() -> None:
    rows = [["claim", "ranks", "test"], ["a < b", "1-4", "ranks/test_a.py::test_b_c"]]
    text = measured.claims("compute", rows).data
    assert text.startswith("<details open><summary><strong>compute</strong></summary>")
    assert "a &lt; b<br><small><code>ranks/test_<wbr>a.py<wbr>::test_<wbr>b_<wbr>c</code></small>" in text
    assert text.count("<th ") == 2


def test_a_bench_is_folded() -> None:
    text = measured.bench("x & y", {"rows": [["n"], [1]], "in short": [["what"], ["z"]]}).data
    assert text.startswith("<details><summary><strong>x &amp; y</strong></summary>")
    assert text.index("<caption>rows</caption>") < text.index("<caption>in short</caption>")


def test_errors_stand_below_their_class_of_size_with_a_sign() -> None:
    errors = {("8 H100", "all_reduce"): {"short": 0.3, "long": -0.05}, ("80 H100", "all_gather"): {"long": 0.0}}
    text = measured.by_size(["machine", "operation"], errors, "medians").data
    assert text.count("<tr") == 3
    assert text.index("short") < text.index("long")
    assert all(f">{cell}<" in text for cell in ("+30", "-5", "80 H100"))
    assert ">30<" in measured.by_size(["machine", "operation"], errors, "medians", signs="-").data
