"""Tables: numbers a reader can take in, text that cannot break the page."""

import math
import re
from typing import Any

import pytest

from shardlab.figures.table import cell, table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(None, ""), ("8 GB", "8 GB"), (True, "True"), (0.0, "0"), (1234567, "1,234,567"), (math.inf, "inf")],
        *[(-0.5, "\N{MINUS SIGN}0.5000"), (1e20, "1.000e+20")],
        *[(1234.567, "1,235"), (12.3456, "12.35"), (0.123456, "0.1235"), (1.5e-7, "1.500e-07")],
    ],
)
def test_cells(value: Any, text: str) -> None:
    assert cell(value) == text


def test_a_table_has_a_header_rows_and_a_caption() -> None:
    text = table([["ranks", "where"], [2, "none"], [4, "<none>"], [8, "in_place"]], "what was sent").data
    assert "<caption>what was sent</caption>" in text
    assert '<th scope="col" style="text-align: right">ranks</th><th scope="col">where</th>' in text
    assert '<td style="text-align: left">&lt;none&gt;</td>' in text
    assert ">in_<wbr>place</td>" in text  # on a phone a name need not be as wide as it is long
    assert text.count("<tr>") == 4


@pytest.mark.parametrize("numbers", [[4, 4.5, 27.27], ["4 %", "4.5 %", "27.27 %"], [4, "", 1234.567, 0.5, "none"]])
def test_decimal_points_stand_below_each_other(numbers: list[Any]) -> None:
    """Digits have one width: as many letters follow each point, shown or not."""
    text = table([["x"], *([x] for x in numbers)]).data
    cells = re.findall(r'<td style="text-align: right[^"]*">(.*?)</td>', text)
    assert len(cells) == len(numbers)
    plain = [re.sub("<.*?>", "", each) for each in cells]
    assert len({len(each) - each.index(".") for each in plain if each and each[0].isdigit()}) == 1
    shown = [re.sub("<span.*?</span>", "", each) for each in cells]
    assert shown == [cell(x, 3).replace(" ", "\N{NO-BREAK SPACE}") for x in numbers]  # never torn from its unit


@pytest.mark.parametrize("head", ["step, s", "waits in NeMo, ms", "link, GB/s"])
def test_the_unit_of_a_head_stays_beside_its_word(head: str) -> None:
    whole = head.replace(", ", ",\N{NO-BREAK SPACE}")
    assert f">{whole}</th>" in table([[head], [1]]).data


def test_a_column_of_words_stays_left() -> None:
    assert "right" not in table([["x"], ["one"], [2], ["three"]]).data


def test_a_column_has_the_fewest_digits_that_tell_its_numbers_apart() -> None:
    text = table([["loss", "GB"], [2.4131, 63.021], [2.4142, 504.13]]).data
    assert re.findall(r'right">([\d.]+)', text) == ["2.413", "63.0", "2.414", "504"]
