"""What tests of plain files share: the lines in a file's docstring, run on ranks and held to one process.

A file shows in its docstring how it is used. Those very lines train here, with a model that differs between ranks at
first, samples that do not divide by the ranks, tied weights, and frozen ones; wrong versions of a file train the same.
"""

import contextlib
import dataclasses
import functools
import re
import types

import torch
from torch import nn

from shardlab import trace
from shardlab.exercises.workshop import load, usage
from shardlab.launch import RankError, run
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.plain import context_parallel, data_parallel
from shardlab.ranks import transformer
from shardlab.ranks.mixture import rebalance

STEPS, SAMPLES, LENGTH, VOCABULARY = 2, 7, 6, 48  # 7 samples: no number of ranks but 1 divides them
WORLD_SIZES, ATOL = (1, 2, 3, 4), 1e-12
SIZES = {"vocab_size": VOCABULARY, "context_length": 24, "hidden_size": 48, "num_layers": 2, "num_heads": 24}
SPECS = {
    "gpt2": TransformerSpec(**SIZES),  # a tied head
    "llama": TransformerSpec(**SIZES, style="llama", num_kv_heads=12, ffn_size=72),  # grouped heads, a head of its own
}
RULES = {"num_experts": 12, "expert_size": 10}  # every number of ranks up to 4 divides the experts
MIXTURES = {  # some whose rules look at the load of all ranks; "ties" begins with equal scores
    "top 2": Experts(**RULES, per_token=2),
    "balance loss": Experts(**RULES, per_token=3, choose="softmax before", balance="loss", loss_weight=0.5),
    "bias": Experts(**RULES, per_token=2, choose="sigmoid", balance="bias", bias_step=0.1, num_shared=2),
    "capacity": Experts(**RULES, per_token=2, capacity=1.0, balance="loss", num_shared=1),
    "ties": Experts(**RULES, per_token=3),
}
SPECS_OF_MIXTURES = {
    name: dataclasses.replace(SPECS["llama"], ffn_size=None, experts=rules) for name, rules in MIXTURES.items()
}
FROZEN = ("embedding.", "blocks.0.", "blocks.1.mlp.down.weight")  # of GPT-2's style, with them the head
CASES = [("gpt2", False), ("gpt2", True), ("llama", False)]  # style, whether some of it is frozen; perhaps layers


def build(style, frozen, layers=SIZES["num_layers"], *, seed, dtype=torch.float64):
    """A model whose every parameter is random: ones and zeros would hide mistakes."""
    torch.manual_seed(seed)
    spec = {**SPECS, **SPECS_OF_MIXTURES}[style]
    model = transformer.Transformer(dataclasses.replace(spec, num_layers=layers)).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.2).requires_grad_(not (frozen and name.startswith(FROZEN)))
            if style == "ties" and "router" in name:
                parameter.zero_()
    return model


def batch_of(step, samples=SAMPLES, length=LENGTH):
    """The tokens of one step, of all ranks: [samples, length + 1]."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randint(VOCABULARY, (samples, length + 1), generator=generator)


def adamw(parameters):
    """A large eps: Adam divides by it where a gradient is nearly 0, and so magnifies the last digit."""
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)


def parameters(model):
    """Every parameter by all of its names, as it is now."""
    return {name: p.detach().clone() for name, p in model.named_parameters(remove_duplicate=False)}


@functools.cache
def alone(*case, length=LENGTH, prepare=lambda model: None):
    """The parameters after each step of one process that sees all samples; `prepare` may change its model."""
    model, history = build(*case, seed=0), []
    prepare(model)
    optimizer = adamw(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = batch_of(step, length=length)
        model(batch[:, :-1], batch[:, 1:]).backward()
        optimizer.step()
        history.append(parameters(model))
    return history


# ---- a plain file, as it is or changed -----------------------------------------------------------------------------


def follow(
    group, name, source, case, read, *, around=contextlib.nullcontext, dtype=torch.float64, length=LENGTH, **variables
):
    """Run the lines of the docstring on this rank; returns what `read` finds in their variables after each step.

    around: a context for each step; `read` is also given what it gives. variables: what the lines use beside a model,
    the group and batches.
    """
    seen = []

    def batches():
        for step in range(STEPS):
            with around() as found:
                yield batch_of(step, length=length)
            seen.append(read(variables, found))

    torch_of_ours = types.SimpleNamespace(optim=types.SimpleNamespace(AdamW=adamw))
    variables |= {"torch": torch_of_ours, "nn": nn, "group": group, "spec": SPECS.get(case[0]), "batches": batches()}
    variables = {"data_parallel": data_parallel, "context_parallel": context_parallel} | variables
    variables[name] = load(name, source)
    variables |= {"partial": functools.partial, "replace": transformer.replace, "rebalance": rebalance}
    variables["Transformer"] = lambda _: build(*case, seed=group.rank(), dtype=dtype)
    exec(usage(source), variables)
    return seen


def changed(source, old, new):
    """The source with one place changed."""
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times"
    return source.replace(old, new)


def verdict(right, *args, world_size=3):
    """What becomes of a wrong version: the launcher's report, or whether all ranks trained as one process does.

    right: returns, from a rank, whether its parameters were those of one process after every step.
    """
    try:
        return all(run(right, *args, world_size=world_size, ranks="threads"))
    except RankError as error:
        return str(error)


def noticed(found, report):
    """Whether a wrong version was: other parameters where `report` is None, else a report of the launcher like this."""
    return found is False if report is None else isinstance(found, str) and re.search(report, found) is not None


def assert_same_training(ours, theirs):
    """Hold two histories to each other: parameters of the same names after each step, but for the last digits."""
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for name in other:
            torch.testing.assert_close(mine[name], other[name], rtol=0, atol=ATOL)


def wire_bytes(_, book):
    """What a rank has sent, to be read after each step inside a ledger."""
    return sum(map(trace.wire_bytes, book.events))


def equal(ours, theirs):
    """Whether tensors of the same names are equal but for the last digits of float64; NaN equals nothing."""
    return all(torch.allclose(ours[name], theirs[name], rtol=0, atol=ATOL) for name in ours)
