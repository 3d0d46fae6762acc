"""Sphinx extension: the index of the search, an entry for each section and each term; search.js asks it.

Without Jupyter Book 1: mystmd has a search; it goes if that one answers the queries of the tests.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shardlab_drawings
from docutils import nodes
from shardlab_reading import aside
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

SCRIPTS = "".join(f'<script defer src="_static/shardlab/{name}.js"></script>' for name in ("sections", "search"))

# Words of readers and of error messages that the book does not use -> the section that answers them.
ALSO = {
    "book/trainer_generator#what-both-hold-and-when": "colocate sleep mode wake up OOM vLLM",
    "book/trainer_generator#one-idea-one-formula-one-redistribution-and-one-pipeline": (
        "RL GRPO PPO weight sync refit rollout resharding"
    ),
    "book/memory#when-it-breaks": "OOM OutOfMemoryError CUDA out of memory, tried to allocate GiB, unallocated",
    "book/memory#recomputation-the-price-is-a-third-more-flops": "activation checkpointing gradient checkpointing",
    "book/collectives#in-one-minute": "AllReduce",
    "book/compute#one-idea-one-formula-six-flops-for-each-parameter-and-token": "6ND 6PD",
    "book/compute#the-factor-is-one-over-the-utilisation": "MFU model FLOPs utilization",
    "book/data_parallel#the-fast-version-sends-few-messages-while-backward-computes": (
        "DDP reducer bucket_cap_mb find_unused_parameters unused parameters"
        " expected to have finished reduction in the prior iteration, mark a variable ready only once"
    ),
    "book/collectives#what-the-bits-depend-on-the-order-of-the-additions": "deterministic reproducible results",
    "book/data_parallel#case-2-no-sync-too-little-and-too-far": "gradient_accumulation_steps synchronization",
    "book/data_parallel#case-3-it-hangs-at-the-end-of-the-epoch": "uneven inputs, hangs at the end of an epoch, join",
    "book/compute#second-sitting-what-to-buy-with-a-budget": "Chinchilla compute-optimal tokens per parameter",
    "book/composition#second-sitting-a-checkpoint-that-knows-no-layout-fits-any-layout": "resume number of GPUs",
    "book/data_parallel#what-real-systems-do-one-line-of-torch": "DistributedDataParallel DDP torchrun mp.spawn",
    "book/interconnects#what-real-systems-do-the-backend-must-know-the-wires": "backend gloo NCCL MPI",
    "book/interconnects#more-symptoms-with-their-cures": "hang IOMMU LACP bonding multiple NICs half bandwidth",
    "book/expert_parallel#all-ranks-wait-for-the-fullest-expert": "load balancing auxiliary loss dropless",
    "book/failures#it-hangs-who-is-missing": "hang stuck freeze deadlock watchdog timeout",
    "book/failures#case-3-three-ranks-report-a-time-out-and-a-fourth-is-to-blame": (
        "watchdog caught collective operation timeout, last enqueued NCCL work"
    ),
    "book/failures#case-4-connection-closed-by-peer": "SIGKILL signal 9 exitcode gloo transport tcp",
    "book/failures#case-5-the-all-reduce-takes-half-of-the-step": "straggler slow rank",
    "book/operations#a-start-is-four-meetings": "MASTER_ADDR MASTER_PORT init_process_group hangs",
    "book/operations#from-a-message-to-one-command": (
        "client socket has timed out while trying to connect, server socket has failed to listen, port, address in use,"
        " failed to connect/validate to host, environment variable RANK expected, DistStoreError"
    ),
    "book/operations#one-idea-one-formula-save-so-often-that-saving-costs-as-much-as-repeating": "MTBF Young Daly",
    "book/pipeline#when-it-breaks": "deadlock hang send recv",
    "book/planner#the-procedure-fits-on-one-card-and-the-batch-comes-first": "choose tensor parallel and pipeline size",
    "book/tensor_parallel#the-embedding-and-the-loss-are-cut-by-words": "vocab parallel cross entropy",
    "book/zero#what-real-systems-do": "FSDP FSDP2 fully sharded data parallel DeepSpeed HSDP",
    "book/zero#when-stage-3-loses-too-few-tokens-a-slow-network-too-little-memory": "ZeRO-3 slow, FSDP slow",
}
SIGNS = {"times": "\u00d7", "cdot": "·", "le": "≤", "ge": "≥", "approx": "≈", "sqrt": "√", "sum": "Σ", "gg": "≫"}
SIGNS |= {"ell": "\u2113", "partial": "∂", "infty": "∞", "leftarrow": "←", "lceil": "⌈", "rceil": "⌉", "ll": "≪"}
SIGNS |= {name: name for name in ("max", "min", "log")} | {"dots": "…", "top": "T"}


def entries(page: str, document: nodes.document) -> Iterator[dict[str, str]]:
    """The sections and the terms of a page: where each begins, its title, its page's title, and its own words."""
    (name, *_) = [words(node) for node in document.findall(nodes.title)] or [page]
    for entry in document.findall(begins):
        heads = [node for node in entry.children if isinstance(node, nodes.title | nodes.term)]
        inside = [node for node in entry.findall(speaks) if within(node) is entry and not aside(node)]
        place = (heads[0]["ids"] or entry["ids"])[0]
        text = re.sub(r"\s+(?=[.,;:)](\s|$))", "", " ".join(map(words, inside)))  # where a reference stood
        texts = {"title": ", ".join(map(words, heads)), "text": " ".join(text.split())}
        also = ALSO.get(f"{page}#{place}", "")
        links = entry.findall(addnodes.pending_xref) if isinstance(heads[0], nodes.term) else []
        (*_, home) = ["", *(link["reftarget"] for link in links)]  # a term's last link leads to its chapter
        yield {"page": page, "id": place, "name": name, **texts, "also": also, "home": home}


def begins(node: nodes.Node) -> bool:
    """Whether an entry begins here: a section, or a term to which a link can lead."""
    term = isinstance(node, nodes.definition_list_item) and node.children[0].get("ids")
    return bool(term) or isinstance(node, nodes.section)


def speaks(node: nodes.Node) -> bool:
    """Whether this is a drawing, a paragraph of the author, or a term without a link: words that read alone."""
    prose = isinstance(node, nodes.paragraph | nodes.caption) or (isinstance(node, nodes.term) and not node["ids"])
    return (prose and "reading-time" not in node["classes"]) or shardlab_drawings.is_drawing(node)


def within(node: nodes.Node) -> nodes.Node | None:
    """The innermost entry around a node."""
    while node is not None and not begins(node):
        node = node.parent
    return node


def words(node: nodes.Node) -> str:
    """The text of a node, with formulas as one would type them and authors by name, or the labels of a drawing."""
    if shardlab_drawings.is_drawing(node):
        return shardlab_drawings.words(node)
    return "".join(map(told, node.findall(nodes.Text)))


def told(text: nodes.Text) -> str:
    """What a text says outside of its page: a formula without TeX, the first author in place of a reference's key."""
    link = text.parent.parent
    if isinstance(link, addnodes.pending_xref) and link["refdomain"] == "cite":
        names = [re.sub(r"\d+\w?$", "", key).capitalize() for key in text.split(",")]
        return " and ".join(names) if link["reftype"] == "t" else ""
    return typed(text) if isinstance(text.parent, nodes.math) else text.astext()


def typed(formula: str) -> str:
    """A formula without TeX: F/β for F/\\beta, (N-1)/N for a fraction."""
    formula = re.sub(r"\\(?:text|operatorname)\{([^{}]*)\}|\\(?:left|right|[bB]ig[lr]?)(?![a-z])", r"\1", formula)
    formula = re.sub(r"\\[,;!]", "", re.sub(r"(?<=[_^])\{([^{}]*)\}|\{,\}", lambda found: found[1] or ",", formula))
    formula = re.sub(r"\\[dt]?frac(?:\{([^{}]*)\}\{([^{}]*)\}|(\d)(\d))", ratio, formula)
    return re.sub(r"[{}\\]", "", re.sub(r"\\([A-Za-z]+)( ?)", lambda found: sign(found[1], found[2]), formula))


def ratio(found: re.Match[str]) -> str:
    """A fraction in one line, with brackets around what has more than one sign."""
    return "/".join(part if re.fullmatch(r"\\?\w+", part) else f"({part})" for part in found.groups() if part)


def sign(command: str, space: str = "") -> str:
    """The letter for a command of TeX, or its sign with the space behind it, or nothing."""
    try:
        return unicodedata.lookup(f"GREEK SMALL LETTER {'lamda' if command == 'lambda' else command}")
    except KeyError:
        return SIGNS[command] + space if command in SIGNS else ""


def write(app: Sphinx, error: Exception | None) -> None:
    """Write all entries beside the scripts of the book."""
    if error is None and app.builder.format == "html":
        found = [each for page in sorted(app.env.found_docs) for each in entries(page, app.env.get_doctree(page))]
        missing = {*ALSO} - {f"{each['page']}#{each['id']}" for each in found}
        if missing and "book/memory" in app.env.found_docs:
            logging.getLogger(__name__).warning("words of readers lead to sections that are not there: %s", missing)
        text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
        target = Path(app.outdir, "_static", "shardlab", "sections.js")
        target.write_text(f"window.shardlabSections = {text};\n", encoding="utf-8")


def load(_: Sphinx, page: str, __: str, context: dict[str, Any], ___: Any) -> None:
    """Let the search page, and no other, load the entries."""
    if page == "search":
        context["metatags"] = context.get("metatags", "") + SCRIPTS


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("html-page-context", load)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
