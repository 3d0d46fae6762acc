"""What context parallelism adds to a training step: seconds that a rank waits, bytes that it holds.

Two strategies of programs with tensor and pipeline parallelism, both with a zig-zag placement:

    ring      NeMo and Megatron-LM: a block travels while attention uses the one before it
    gathered  Llama 3 (https://arxiv.org/abs/2407.21783), section 3.3.2: nothing hides the
              all-gather. Backward gathers once more, so that no layer keeps other ranks' keys, as
              AttnFuncWithCPAndKVAllGather of https://github.com/NVIDIA/TransformerEngine does
"""

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

from shardlab.files.arguments import Count, Positive, checked
from shardlab.sharding.layout import listed

from .. import memory
from ..facts.hardware import ReachedLink
from ..training import Training
from .strategies import SplitAttention, attention, messages, resident, sent_bytes

PROGRAMS = ("ring", "gathered")  # of STRATEGIES, those that a step can be predicted for


@checked
def exposed_seconds(
    a: SplitAttention,
    strategy: str,
    link: ReachedLink,
    *,
    forward: float,
    backward: float,
    again: bool = False,
) -> float:
    """Time one layer's waiting for keys and values of other ranks, and for their gradients.

    forward, backward: seconds of the rank's attention, of which each turn of a ring takes an equal
    part. again: whether backward first computes forward a second time.
    """
    _known(strategy)
    if a.ranks == 1:
        return 0.0
    forwards = 2 if again else 1
    if strategy == "gathered":
        sent = sent_bytes(a, strategy, again=True)
        started = messages(a, strategy, again=True)
        num_messages = forwards * started["forward"] + started["backward"]
        nbytes = forwards * sent["forward"] + sent["backward"]
        return num_messages * (a.ranks - 1) * link.latency + nbytes / link.bandwidth
    once = ring_seconds(a, link, computing=forward)
    return forwards * once + ring_seconds(a, link, computing=backward, backward=True)


@checked
def ring_seconds(
    a: SplitAttention, link: ReachedLink, *, computing: float = 0.0, backward: bool = False
) -> float:
    """Time what a rank waits for while blocks go once round the ring.

    computing: seconds of the rank's attention, which hide steps; 0: how long the links are busy.
    """
    waited = 0.0
    for nbytes, hides in ring_steps(a, backward=backward):
        seconds = link.latency + nbytes / link.bandwidth if nbytes else 0.0
        waited += max(0.0, seconds - hides * computing / a.ranks)
    return waited


@checked
def ring_steps(a: SplitAttention, *, backward: bool) -> Iterator[tuple[float, bool]]:
    """Yield what a rank sends in each turn of a ring: bytes, and whether attention hides them.

    A block travels beside every turn but the last. In backward the gradient of the block of turn t
    is ready after it and travels beside turn t + 1; the last one has only its step home, alone. The
    gradient of the rank's own block stays.
    """
    keys = 2 * a.block
    for turn in range(a.ranks):
        travels = int(turn < a.ranks - 1) + int(backward and turn > 1)
        yield travels * keys, True
    if backward and a.ranks > 1:
        yield keys, False


@checked
def hiding_tokens(
    a: SplitAttention,
    *,
    rate: Positive,
    bandwidth: Positive,
    causal: bool = False,
    latency: float = 0.0,
) -> float:
    """Return the fewest tokens per rank that hide a step of the ring behind a block's attention.

    H heads of e numbers take 4 c^2 He FLOPs for c tokens, and a step moves 2 c Ke numbers with K
    key/value heads. So c >= (K / 2H) * element * rate / bandwidth. With K = H and 16 bits this is
    c >= rate / bandwidth: Liu et al. 2023, section 3. causal: half of the pairs are computed in the
    same number of steps, so twice as many tokens are needed.

    rate: FLOP/s of attention; bandwidth: bytes/s that a rank sends. latency: seconds of a step that
    its bytes do not explain; then c^2 >= limit * c + latency * pairs, with the limit above and the
    pairs of a query and a key that a rank computes in a second.
    """
    limit = a.block / a.queries * a.element * rate / bandwidth / 2 * (2 if causal else 1)
    pairs = rate / (2 if causal else 4) / (a.batch * a.heads * a.head_size)
    return limit / 2 + sqrt((limit / 2) ** 2 + latency * pairs)


@checked
def at_work(training: Training, strategy: str) -> float:
    """Count the bytes of other ranks' keys and values on a rank while one layer computes."""
    _known(strategy)
    if training.layout.cp == 1:
        return 0.0
    a = of(training)
    return resident(a, strategy) - 2 * a.block


@checked
def held(training: Training, *, loss_tokens: Count = 1024) -> dict[str, float]:
    """Count the bytes on a rank of a ring at its peak, with a loss that is computed in pieces.

    As `memory.per_rank`, with two differences: only the logits of `loss_tokens` tokens exist at a
    time, and a layer at work also has the blocks of other ranks. Errors: ValueError for more than
    one pipeline stage, for only the last one has logits.
    """
    if training.layout.pp > 1:
        raise ValueError(f"pp={training.layout.pp} leaves the first stage without a loss; use pp=1")
    one = memory.microbatch_bytes(training)
    share = min(1.0, loss_tokens / training.tokens)
    backward = one.backward + at_work(training, "ring")
    in_pieces = replace(one, logits=share * one.logits, loss=share * one.loss, backward=backward)
    return memory.per_rank(training, one=in_pieces)


@checked
def of(training: Training) -> SplitAttention:
    """Take the sizes of one layer's attention from a training."""
    layout = training.layout
    return attention(
        training.spec,
        length=training.tokens_per_sequence,
        ranks=layout.cp,
        tp=layout.tp,
        batch=training.microbatch,
        element=training.recipe.element,
    )


def _known(strategy: str) -> None:
    if strategy not in PROGRAMS:
        raise ValueError(f"no step is predicted for {strategy!r}; use {listed(PROGRAMS)}")
