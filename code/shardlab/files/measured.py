"""What the benches measured: the files that `bench/` writes, as tables and words for a page."""

import ast
import json
from typing import Any

from . import project

SPREAD = {"median", "quartile 1", "quartile 3"}


def results(stem: str) -> dict[str, Any]:
    """Return what bench/<stem>.py wrote.

    Errors: FileNotFoundError, with the command that writes the file.
    """
    path = project.BENCH / "results" / f"{stem}.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no bench/results/{stem}.json; "
            f"run python bench/{stem}.py in the project's folder"
        )
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def setting(found: dict[str, Any]) -> str:
    """Describe where and when the results `found` were measured: machine, torch, date."""
    here = found["setting"]
    machine = ", ".join(here["gpus"]) or f"{here['cores']} cores of {here['processor']}"
    return f"{machine}, torch {here['torch']}, {here['date']}"


def spread(ratio: dict[str, float]) -> str:
    """Write a median with its quartiles: 1.02 (0.98-1.05)."""
    median, low, high = (ratio[name] for name in ("median", "quartile 1", "quartile 3"))
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def step_ratios(found: dict[str, Any], ratio: str) -> list[list[Any]]:
    """Make a table of one ratio of step times, as "ours / torch": models down, pairs across."""
    names = list(found["rows"][0][ratio])
    table: list[list[Any]] = [["parameters", "ranks", *names]]
    for row in found["rows"]:
        spreads = [spread(row[ratio][name]) for name in names]
        table.append([row["parameters"], row["ranks"], *spreads])
    return table


def stems() -> list[str]:
    """List the names of all benches with results, in alphabetical order."""
    return sorted(path.stem for path in (project.BENCH / "results").glob("*.json"))


def question(stem: str) -> str:
    """Return what a bench asks: the first paragraph in its file."""
    text = (project.BENCH / f"{stem}.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(text)) or ""
    first, _, _ = docstring.partition("\n\n")
    return " ".join(first.split())


def proofs(kind: str) -> dict[str, list[list[Any]]]:
    """Return the claims that tests prove, as a table for each chapter.

    kind: "parity", of tensors that are equal, or "counted", of numbers that a formula predicts.
    """
    tables: dict[str, list[list[Any]]] = {}
    sizes = ["cases", "numbers"]
    if kind == "counted":
        sizes.append("largest")
    header = ["claim", "ranks", *sizes, "worst difference", "allowed", "test"]
    for row in results("proofs")["proofs"]:
        if row["kind"] == kind:
            shown = [row["claim"], _ranges(row["ranks"]), *(row[name] for name in sizes)]
            shown += [_error(row.get(name)) for name in ("difference", "allowed")]
            shown.append(row["test"].removeprefix("tests/"))
            chapter = row["chapter"].replace("_", " ")
            tables.setdefault(chapter, [header]).append(shown)
    return tables


def _error(x: float | None) -> str | None:
    if x is None:
        return None
    return f"{x:.1e}" if x else "0"


def _ranges(numbers: list[int]) -> str:
    """Write rising numbers as ranges: 1-4, 8."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(words)


def tables(found: dict[str, Any]) -> dict[str, list[list[Any]]]:
    """Turn all results of a file, but for its setting, into tables with a header: title -> rows."""
    named: dict[str, list[list[Any]]] = {}
    measured = {key: value for key, value in found.items() if key != "setting"}
    _collect("", measured, named)
    return named


def _collect(title: str, found: dict[str, Any], named: dict[str, list[list[Any]]]) -> None:
    """Add to `named` one table of the values, and one for each list or dictionary of rows."""
    facts = [[key, _shown(value)] for key, value in found.items() if _is_value(value)]
    if facts:
        named[title or "in short"] = [["what", "value"], *facts]
    for key, value in found.items():
        name = f"{title}, {key}" if title else key
        if isinstance(value, list) and not _is_value(value):
            _add_rows(name, value, named)
        elif not _is_value(value) and all(map(_is_row, value.values())):
            rows = [{"": label, **row} for label, row in value.items()]
            _add_rows(name, rows, named)
        elif not _is_value(value):
            _collect(name, value, named)


def _add_rows(title: str, rows: list[dict[str, Any]], named: dict[str, list[list[Any]]]) -> None:
    """Add a table of the rows' own values, and one for each dictionary in the rows.

    The tables of dictionaries begin with the columns that tell the rows apart.
    """
    first = rows[0]
    own = [key for key, value in first.items() if _is_value(value)]
    apart = [key for key in own if isinstance(first[key], str | int)]
    parts = [key for key, value in first.items() if key not in own and isinstance(value, dict)]
    if own != apart or not parts:
        named[title] = [own, *([_shown(row.get(key)) for key in own] for row in rows)]
    for part in parts:
        named[f"{title}: {part}"] = _of_part(rows, apart, part)
    for row in rows:
        for part in row.keys() - {*own, *parts}:
            label = row[apart[0]]
            _add_rows(f"{title}, {label}: {part}", row[part], named)


def _of_part(rows: list[dict[str, Any]], apart: list[str], part: str) -> list[list[Any]]:
    """Make the table of the dictionaries `part`, beside the columns `apart`."""
    flat = [_flat(row.get(part, {})) for row in rows]
    columns = list(dict.fromkeys(key for each in flat for key in each))
    table = [[*apart, *columns]]
    for row, each in zip(rows, flat, strict=True):
        labels = [row[key] for key in apart]
        values = [_shown(each.get(key)) for key in columns]
        table.append(labels + values)
    return table


def _flat(x: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries: {"a": {"b": 1}} becomes {"a, b": 1}."""
    if _is_value(x):
        return {name: x}
    found: dict[str, Any] = {}
    for key, value in x.items():
        path = f"{name}, {key}" if name else key
        found |= _flat(value, path)
    return found


def _is_value(x: Any) -> bool:
    """Whether `x` fits a cell: a number, a word, a spread, or a list without dictionaries."""
    if isinstance(x, dict):
        return x.keys() == SPREAD
    return not (isinstance(x, list) and any(isinstance(each, dict) for each in x))


def _is_row(x: Any) -> bool:
    """Whether `x` is a dictionary of values only."""
    return isinstance(x, dict) and x.keys() != SPREAD and all(map(_is_value, x.values()))


def _shown(x: Any) -> Any:
    if isinstance(x, dict):
        middle, low, high = (x[key] for key in ("median", "quartile 1", "quartile 3"))
        return f"{middle:.3g} ({low:.3g}-{high:.3g})"
    return ", ".join(str(_shown(each)) for each in x) if isinstance(x, list) else x
