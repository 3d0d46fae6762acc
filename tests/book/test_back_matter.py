"""The back matter is complete: all hardware stands in its tables, every disagreement has sources and a decision."""

from __future__ import annotations

import ast
import html
import re
from typing import Any

import IPython.display
import jupytext
import pytest
import torch

from shardlab import schedules
from shardlab.costs import programs
from shardlab.costs.compute import kernels
from shardlab.costs.compute.time_to_train import TimeToTrain
from shardlab.costs.facts import fabrics, hardware, nodes, recipes
from shardlab.costs.facts.attention import NEWEST, attention
from shardlab.costs.memory.offload import Swap
from shardlab.costs.pipeline import timeline
from shardlab.costs.units import GB, GiB, us
from shardlab.sharding import sequences

from .conftest import ROOT

BOOK = ROOT / "book"
LEAST = 20  # disagreements


def tables(page: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """All that the cells of a page show, as HTML."""
    shown: list[Any] = []
    monkeypatch.setattr(IPython.display, "display", shown.append)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in jupytext.read(BOOK / page, fmt="md:myst").cells:
        if cell.cell_type == "code":
            *body, last = ast.parse(cell.source).body
            exec(compile(ast.Module(body, []), page, "exec"), names)
            if isinstance(last, ast.Expr):
                shown.append(eval(compile(ast.Expression(last.value), page, "eval"), names))
            else:
                exec(compile(ast.Module([last], []), page, "exec"), names)
    return "\n".join(each.data for each in shown if each is not None)


def test_all_hardware_stands_in_the_tables_with_a_link_to_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    text = tables("hardware.md", monkeypatch)
    for name in [*hardware.CHIPS, *hardware.LINKS, *nodes.NODES, fabrics.LLAMA_3.name]:
        assert re.search(rf'<a [^>]*href="https://[^"]*">{re.escape(html.escape(name))}</a>', text), name
    for name in [*hardware.CHIPS, *nodes.NODES]:  # and once more, with the whole source
        assert re.search(rf"<td[^>]*>{re.escape(html.escape(name))}</td><td[^>]*><a ", text), name


ENTRIES = re.split(r"^### ", (BOOK / "disagreements.md").read_text(), flags=re.MULTILINE)[1:]


def test_there_are_enough_disagreements() -> None:
    assert len({entry.splitlines()[0] for entry in ENTRIES}) >= LEAST


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.splitlines()[0])
def test_a_disagreement_has_sources_and_a_decision(entry: str) -> None:
    story, _, decision = entry.partition("\n**Here:** ")
    assert re.search(r"\{cite(:t)?\}`|\]\(https://", story), "who prints it?"
    assert decision, "what does this book use?"


def assumption(name: str) -> str:
    """What the page of letters assumes about this, with the rows of its table."""
    section = (BOOK / "notation.md").read_text().partition("## What the numbers assume")[2]
    _, found, text = section.partition(f"**{name}")
    assert found, name
    return text.partition("\n\n**")[0].partition("\n## ")[0]


def test_the_shares_of_the_peak_are_those_of_the_package() -> None:
    text = assumption("The share of the peak.")
    whole_steps = {TimeToTrain.utilisation, Swap.utilisation}
    products = {
        name: kernels.ordinary_flops(chip) / chip.peak_flops
        for name in ("H100", "A100")
        for chip in [hardware.chip(f"{name} SXM 80 GB")]
    }
    for share in whole_steps:
        assert f"| {share:.0%} |".replace("%", " %") in text
    for name, share in products.items():
        assert f"{100 * share:.0f} % on an {name}" in text
    of_best = f"{kernels.AT_ITS_LIMIT * 100:.0f} and {kernels.ORDINARY * 100:.0f} %"
    assert f"{of_best} of the fastest product" in text
    hopper = attention(NEWEST, hardware.chip("H100 SXM 80 GB"))
    forward, backward = (f"{100 * each.long:.0f} %" for each in (hopper.forward, hopper.backward))
    assert f"attention (at most {forward} of an H100's peak forward and {backward} backward)" in text
    assert f"memory traffic ({kernels.MOVED * 100:.0f} %" in text


def test_rates_and_latencies_are_those_of_the_package() -> None:
    text = assumption("The share of a rate.")
    assert f"takes {hardware.LINK_UTILISATION}, unless a program's source gives another" in text
    assert f"as {programs.SELENE_2021:.2f} between the servers of Selene in 2021" in text
    text = assumption("Latency.")
    steps = {
        protocol: [hardware.PROTOCOL_STEPS[wire][protocol] / us for wire in ("NVLink", "network")]
        for protocol in ("LL", "LL128", "Simple")
    }
    nvlink, network = steps["Simple"]
    assert f"{nvlink:.1f} µs over NVLink and {network:.0f} µs over a network" in text
    for protocol in ("LL", "LL128"):
        nvlink, network = steps[protocol]
        assert f"{protocol}{' takes' if protocol == 'LL' else ''} {nvlink:.1f} and {network:.1f} µs" in text
    quarter = 0.92 * steps["LL128"][1] / steps["Simple"][1]  # LL128 carries 92 % of the rate
    assert quarter == pytest.approx(1 / 4, abs=0.02)


def test_gradients_and_capacities_are_those_of_the_package() -> None:
    text = assumption("Gradients")
    assert f"and {recipes.MIXED.bytes_per_parameter} bytes of states" in text
    assert f"take {recipes.recipe('mixed, fp32 gradients').bytes_per_parameter} bytes" in text
    assert f"{80 * GiB / GB:.1f} GB" in assumption("GB and GiB.")
    assert hardware.chip("H100 SXM 80 GB").memory == 80 * GB


def test_a_source_has_a_key_of_its_own_and_every_cited_key_a_source():
    keys = re.findall(r"^@\w+\{(\w+),", (BOOK / "references.bib").read_text(), re.MULTILINE)
    cited = re.findall(r"\{cite(?::\w)?\}`([^`]+)`", "".join(page.read_text() for page in BOOK.glob("*.md")))
    assert sorted(keys) == sorted(set(keys)), "a key stands twice"
    assert set(keys) == set(re.split(r"[, ]+", ",".join(cited)))


# ---- lab sheets ------------------------------------------------------------------------------------------------------


def test_a_lab_sheet_names_what_its_page_has() -> None:
    """Forms with their questions, cells, sections, explorers and the exercise to hand in."""
    explorers = "".join(path.read_text() for path in (ROOT / "code/shardlab/explorers").glob("*.py"))
    lost = []
    for sheet in (BOOK / "labs.md").read_text().split("\n## Lab ")[1:]:
        (stem,) = re.findall(r"Page \[[^\]]+\]\((\w+)\.md\)", sheet)
        page = (BOOK / f"{stem}.md").read_text() + explorers
        opened, asked, run = (re.findall(rf"\*\*{name}\.\*\* (.*)", sheet)[0] for name in ("Open", "Ask", "Run"))
        named = re.findall(r"[^ ?][^?]*\?", asked) + re.findall(r"(?<!\*)\*([^*]{4,})\*(?!\*)", opened + run)
        named += [each for each in re.findall(r"`([^`]+)`", run) if not each.startswith("python -m")]
        named += [f'check("{each}"' for each in re.findall(r"Hand in `([\w.]+)`", sheet)]
        lost += [(stem, each) for each in named if each.lower() not in page.lower()]
    assert not lost


def test_the_numbers_on_which_students_stick_are_those_of_the_package() -> None:
    sheets = " ".join((BOOK / "labs.md").read_text().split())
    gelu = torch.nn.functional.gelu(torch.tensor([1.0, -1.0])).sum()
    assert f"gelu(1) + gelu(\N{MINUS SIGN}1), which is {gelu:.2f}," in sheets
    played = timeline.play(schedules.make("GPipe", 3, 4), {"F": 1, "B": 2})
    assert (played.bubble_of_ideal, played.bubble_of_total) == (1 / 2, pytest.approx(1 / 3))
    shares = "half of the time that a stage computes and a third of all time"
    assert f"with three stages and four microbatches it is {shares}" in sheets
    pairs: list[int] = []
    for placement in ("contiguous", "zig-zag"):
        ranks = sequences.place(4, 2, placement)
        pairs += [sum(query + 1 for run in runs for query in run) for runs in ranks]
    assert "two ranks and four tokens, {} and {} in contiguous parts, {} and {} in a zig-zag".format(*pairs) in sheets
