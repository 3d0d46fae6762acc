"""What the benches of the book measured: the files that `bench/` writes, and how a page names their circumstances."""

import ast
import json
from typing import Any

from . import project

SPREAD = {"median", "quartile 1", "quartile 3"}


def results(stem: str) -> dict[str, Any]:
    """Return what bench/<stem>.py wrote.

    Errors: FileNotFoundError that names the command, where nothing was written.
    """
    path = project.BENCH / "results" / f"{stem}.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no bench/results/{stem}.json; run python bench/{stem}.py in the project's folder"
        )
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def setting(found: dict[str, Any]) -> str:
    """The circumstances of a measurement in a few words."""
    here = found["setting"]
    machine = ", ".join(here["gpus"]) or f"{here['cores']} cores of {here['processor']}"
    return f"{machine}, torch {here['torch']}, {here['date']}"


def spread(ratio: dict[str, float]) -> str:
    """A median with its quartiles: 1.02 (0.98-1.05)."""
    return f"{ratio['median']:.2f} ({ratio['quartile 1']:.2f}-{ratio['quartile 3']:.2f})"


def stems() -> list[str]:
    """Names of all that was measured, in alphabetical order."""
    return sorted(path.stem for path in (project.BENCH / "results").glob("*.json"))


def question(stem: str) -> str:
    """What a bench is about: the first sentence in its file."""
    text = (project.BENCH / f"{stem}.py").read_text(encoding="utf-8")
    (words, *_) = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")
    return " ".join(words.split())


def proofs(kind: str) -> dict[str, list[list[Any]]]:
    """Claims that tests prove, as a table for each chapter: of "parity" between tensors, or "counted" numbers."""
    tables: dict[str, list[list[Any]]] = {}
    largest = ["largest"] if kind == "counted" else []
    header = ["claim", "ranks", "cases", "numbers", *largest, "worst difference", "allowed", "test"]
    for row in results("proofs")["proofs"]:
        if row["kind"] == kind:
            sizes = [row[name] for name in ("cases", "numbers", *largest)]
            worst = [row.get(name) for name in ("difference", "allowed")]
            worst = [None if x is None else f"{x:.1e}" if x else "0" for x in worst]
            shown = [row["claim"], _ranges(row["ranks"]), *sizes, *worst, row["test"].removeprefix("tests/")]
            tables.setdefault(row["chapter"].replace("_", " "), [header]).append(shown)
    return tables


def _ranges(numbers: list[int]) -> str:
    """Rising numbers in a few words: 1-4, 8."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def tables(found: dict[str, Any]) -> dict[str, list[list[Any]]]:
    """All that a file of results holds beside its setting, as tables with a header, by title."""
    named: dict[str, list[list[Any]]] = {}
    _collect("", {key: value for key, value in found.items() if key != "setting"}, named)
    return named


def _collect(title: str, found: dict[str, Any], named: dict[str, list[list[Any]]]) -> None:
    """Values go into one table, every list of rows and every dictionary of rows into its own."""
    facts = [[key, _shown(value)] for key, value in found.items() if _is_value(value)]
    if facts:
        named[title or "in short"] = [["what", "value"], *facts]
    for key, value in found.items():
        name = f"{title}, {key}" if title else key
        if isinstance(value, list) and not _is_value(value):
            _add_rows(name, value, named)
        elif not _is_value(value) and all(map(_is_row, value.values())):
            _add_rows(name, [{"": label, **row} for label, row in value.items()], named)
        elif not _is_value(value):
            _collect(name, value, named)


def _add_rows(title: str, rows: list[dict[str, Any]], named: dict[str, list[list[Any]]]) -> None:
    """A table of the rows' own values, and one for each dictionary in them, beside what tells the rows apart."""
    own = [key for key, value in rows[0].items() if _is_value(value)]
    apart = [key for key in own if isinstance(rows[0][key], str | int)]
    parts = [key for key, value in rows[0].items() if key not in own and isinstance(value, dict)]
    if own != apart or not parts:
        named[title] = [own, *([_shown(row.get(key)) for key in own] for row in rows)]
    for part in parts:
        flat = [_flat(row.get(part, {})) for row in rows]
        columns = list(dict.fromkeys(key for each in flat for key in each))
        both = [
            [row[key] for key in apart] + [_shown(each.get(key)) for key in columns]
            for row, each in zip(rows, flat, strict=True)
        ]
        named[f"{title}: {part}"] = [[*apart, *columns], *both]
    for row in rows:
        for part in row.keys() - {*own, *parts}:
            _add_rows(f"{title}, {row[apart[0]]}: {part}", row[part], named)


def _flat(x: Any, name: str = "") -> dict[str, Any]:
    """The values of nested dictionaries by the keys that lead to each."""
    if _is_value(x):
        return {name: x}
    inner = ((f"{name}, {key}" if name else key, value) for key, value in x.items())
    return {path: leaf for key, value in inner for path, leaf in _flat(value, key).items()}


def _is_value(x: Any) -> bool:
    """What fits a cell: a number, a word, a spread, or a list without dictionaries."""
    if isinstance(x, dict):
        return x.keys() == SPREAD
    return not (isinstance(x, list) and any(isinstance(each, dict) for each in x))


def _is_row(x: Any) -> bool:
    return isinstance(x, dict) and x.keys() != SPREAD and all(map(_is_value, x.values()))


def _shown(x: Any) -> Any:
    if isinstance(x, dict):
        middle, low, high = (x[key] for key in ("median", "quartile 1", "quartile 3"))
        return f"{middle:.3g} ({low:.3g}-{high:.3g})"
    return ", ".join(str(_shown(each)) for each in x) if isinstance(x, list) else x
