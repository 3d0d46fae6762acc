"""Two ways to spread experts over ranks of tensor parallelism: a part of each, or whole ones.

    cut     every rank has 1/tp of each expert of its place along ep. It gathers the slices of
            sequences, sends all tokens to its own place of the other ep ranks, and the ranks sum
            their parts: Megatron-LM's expert_tensor_parallel_size = tp
    whole   the ep * tp ranks have different experts. Each sends the tokens of its slice to them:
            expert_tensor_parallel_size = 1, "MoE parallel folding"
            (https://arxiv.org/abs/2504.14960)

A rank holds as many parameters either way, and computes as many FLOPs if the load is even. Narrow
experts make narrow products: cut, an expert of width f leaves products of width f / tp, and tp
times as many of them. Whole experts send less from few ranks on, but with shared experts, which are
cut either way, slices are gathered anyway. Cut experts need fewer of them, and tp ranks that
compute the same tokens never wait for each other. `step.experts` times both.

All quantities are for one layer's forward, as a mean over ranks, with sequence parallelism.
"""

from dataclasses import replace

from shardlab.arguments import Count, checked
from shardlab.sharding.layout import divisors, listed

from .exchange import Exchange, sent_bytes

FP32 = 4.0  # bytes of a router's score


@checked
def tensor_ways(exchange: Exchange, tp: Count) -> dict[str, dict[str, float]]:
    """Count the bytes that a rank sends, as cut or whole -> message -> bytes.

    exchange: between the ep ranks of dp. The tokens of each are in slices on its tp ranks, which
    gather the scores, in fp32, so that all choose alike. Errors: ValueError for tokens or experts
    that do not split.
    """
    e = exchange
    if e.tokens % tp:
        raise ValueError(
            f"tokens={e.tokens} do not split over tp={tp} ranks; "
            f"use tp = {listed(divisors(e.tokens))}"
        )
    others = (tp - 1) / tp
    slices = others * e.tokens * e.hidden_size
    scores = others * e.tokens * e.experts.num_experts * FP32
    around = {"gather": slices * e.dispatch, "scatter": slices * e.combine}
    whole = replace(e, tokens=e.tokens // tp, ep=e.ep * tp, per_node=e.per_node * tp)
    for_shared = around if e.experts.num_shared else {"gather": 0.0, "scatter": 0.0}
    return {
        "cut": {"scores": scores, **around, **_trips(e)},
        "whole": {"scores": scores, **for_shared, **_trips(whole)},
    }


def _trips(exchange: Exchange) -> dict[str, float]:
    """Sum over levels, with a copy to each rank."""
    sent = sent_bytes(exchange, "ranks")
    return {trip: sum(levels.values()) for trip, levels in sent.items()}
