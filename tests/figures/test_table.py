"""Tables: numbers a reader can take in, text that cannot break the page."""

import math
from typing import Any

import pytest

from shardlab.figures.table import cell, table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(None, ""), ("8 GB", "8 GB"), (True, "True"), (0.0, "0"), (1234567, "1,234,567"), (math.inf, "inf")],
        *[(1234.567, "1,235"), (12.3456, "12.35"), (0.123456, "0.1235"), (-0.5, "-0.5000"), (1.5e-7, "1.500e-07")],
    ],
)
def test_cells(value: Any, text: str) -> None:
    assert cell(value) == text


def test_a_table_has_a_header_rows_and_a_caption() -> None:
    text = table([["ranks", "bytes"], [2, 1234567], [4, "<none>"], [8, "in_place"]], "what was sent").data
    assert "<caption>what was sent</caption>" in text
    assert '<th scope="col">ranks</th><th scope="col">bytes</th>' in text
    assert '<td style="text-align: right; white-space: nowrap">1,234,567</td>' in text
    assert '<td style="text-align: left">&lt;none&gt;</td>' in text
    assert ">in_<wbr>place</td>" in text  # on a phone a name need not be as wide as it is long
    assert text.count("<tr>") == 4
