"""Mixtures by every rule, their data, and what one process makes of them."""

import functools

import torch

from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.ranks.data_parallel import sampler
from shardlab.ranks.mixture import rebalance
from shardlab.ranks.transformer import Transformer

LENGTH, VOCABULARY, MAX_NORM, STEPS, MICROBATCHES = 8, 11, 0.1, 2, 2
SIZES = {"vocab_size": VOCABULARY, "context_length": LENGTH, "hidden_size": 16, "num_heads": 4}
STYLES = {"gpt2": {}, "llama": {"style": "llama", "num_kv_heads": 2}}
EIGHT = {"num_experts": 8, "expert_size": 8}
RULES = {  # "ties" begins with equal scores: all tokens choose experts 0 and 1
    "shared": Experts(**EIGHT, per_token=2, num_shared=2),
    "balance loss": Experts(**EIGHT, per_token=3, choose="softmax before", balance="loss", loss_weight=0.5),
    "bias": Experts(**EIGHT, per_token=2, choose="sigmoid", balance="bias", bias_step=0.2, num_shared=1),
    "ties": Experts(**EIGHT, per_token=2),
    "capacity": Experts(**EIGHT, per_token=2, capacity=1.0, balance="loss", num_shared=1),
}


def spec(style, rules, layers):
    return TransformerSpec(**SIZES, **STYLES[style], num_layers=layers, experts=RULES[rules])


def plain(style, rules, layers, dtype=torch.float64):
    """Make a model in which every parameter is random: ones and zeros would hide mistakes."""
    torch.manual_seed(0)
    model = Transformer(spec(style, rules, layers)).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.3)
            if rules == "ties" and "router" in name:
                parameter.zero_()
    return model


def data(step, samples):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (samples, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def batch(rank, ranks, step, samples):
    """One rank's samples and their weight."""
    mine = list(sampler.shard(samples, rank, ranks))
    tokens, targets = (x[mine] for x in data(step, samples))
    return tokens, targets, sampler.weight(len(mine), samples, ranks)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)


def microbatches(samples, dp, count):
    """The samples that all replicas compute at the same time; their load is counted together."""
    parts = [torch.tensor(sampler.shard(samples, rank, dp)).tensor_split(count) for rank in range(dp)]
    return [torch.cat([part[i] for part in parts]).tolist() for i in range(count)]


@functools.cache
def alone(style, rules, layers, samples, dp, count=MICROBATCHES, steps=STEPS):
    """Train in one process; return [(loss, norm), ...] by step, and the last weights and biases."""
    model, history = plain(style, rules, layers), []
    adam = adamw(model.parameters())
    for step in range(steps):
        adam.zero_grad()
        tokens, targets = data(step, samples)
        total = 0.0
        for chosen in microbatches(samples, dp, count):
            loss = model(tokens[chosen], targets[chosen]) * len(chosen) / samples
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item()
        history.append((total, norm))
        adam.step()
        rebalance(model)
    return history, {name: x for name, x in model.state_dict().items() if name != "head.weight" or style == "llama"}
