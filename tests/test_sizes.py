"""Density is one number for one source: names and operators for each line of code, on every Python."""

import pytest

from tools.sizes import code_lines, density

DOCUMENTED = '"""Two\nlines."""\n\n# a comment\nx = f(a, b)  # and one\n\n\ndef g():\n    """One."""\n    return x\n'


def test_empty_lines_comments_and_docstrings_are_no_code():
    assert code_lines(DOCUMENTED) == [5, 8, 10]
    assert code_lines("def f():\n    ...\n") == [1, 2]
    assert density(DOCUMENTED) == (4 + 2 + 1 + 1 + 1) / 3


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("x = 1", 2),
        ("if x is not None: return", 1),  # keywords do not count, nor does a colon
        ("f(a, [b], {c: d})", 8),  # an opening bracket stands for both
        ('x = f"{a.b(c)!r:>{width}} {d}" + g', 4),  # an f-string is one string, whatever it holds
        ("x = f'{a} {f(b[0])}' f'{c}'", 2),
        ('f"{a}".join(b)', 4),
        ('x = f"{{a}}"', 2),
        ("match = case", 3),  # soft keywords are names
    ],
)
def test_names_and_operators_count(source, count):
    assert density(source) == count


def test_files_are_counted_together():
    assert density("x = 1\n", "x = a + b\n# a comment\ny = 2\n") == (2 + 5 + 2) / 3
