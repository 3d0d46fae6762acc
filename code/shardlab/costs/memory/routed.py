"""What a mixture's router and routed experts keep for backward, and widths that others share."""

from shardlab.files.arguments import Count, checked
from shardlab.model.experts import distinct

from ..training import Training

FP32, INT64 = 4, 8  # bytes


@checked
def routed(training: Training) -> dict[str, float]:
    """Count the bytes that the router and the routed experts keep, for the tokens that come here.

    A copy of a token is kept as an expert's input, in its hidden layer, and as its output, on which
    the gradient of its weight depends; where torch adds up what comes back, weighted, too. The
    router reads an fp32 copy, or its slice of what shared experts keep whole; it keeps its scores
    and the chosen numbers. Of tokens that travel torch keeps each row that comes back, two numbers
    of its place, and the numbers of all its experts, wherever they are.
    """
    spec = training.spec
    experts = spec.experts
    if experts is None:
        return {}
    element = training.recipe.element
    size = spec.hidden_size
    rows = training.imbalance * training.routed_tokens
    apart = unfused(training, "experts")
    chosen = experts.num_experts if apart else experts.per_token  # torch keeps a view of all
    weights = {"softmax before": 0, "softmax after": experts.per_token}
    numbers = experts.num_experts + weights.get(experts.choose, experts.per_token + 1)
    sliced = training.program.keeps_gathered and between(training) < training.tokens
    copied = element < FP32 or (sliced and experts.num_shared > 0)
    width = hidden(training, experts.expert_size, training.layout.expert_tp)
    sums = apart * _sums(training)
    places = training.routed_tokens + (sums * experts.per_token or training.routed_tokens)
    return {
        "router: input": copied * between(training) * size * FP32,
        "router: scores and weights": training.tokens * numbers * FP32,
        "router: choices": (training.tokens * chosen + places) * INT64,
        "routed experts: weights": rows * element,
        "routed experts: input": rows * size * read(training),
        "routed experts: hidden": rows * width,
        "routed experts: output": (1 + apart) * rows * size * element,
        "routed experts: sums": sums * (size * element + 2 * INT64),
    }


def _sums(training: Training) -> float:
    """Count the rows that come back to a rank from those with experts of its tokens."""
    experts = training.spec.experts
    ranks = training.layout.expert_ranks
    if experts is None or ranks == 1:
        return 0.0
    held = experts.num_experts // ranks
    return training.dispatched_tokens * distinct(ranks, held, experts.per_token)


@checked
def hidden(training: Training, width: int, ranks: Count) -> float:
    """Count the bytes that a hidden layer, cut over `ranks`, keeps for each token.

    Before and after GELU; or gate, up and their product, and without a fused kernel SiLU(gate). The
    last matrix reads one of them.
    """
    gated = training.spec.has_gate
    others = 2 + ("SwiGLU" in training.program.unfused) if gated else 1
    return (others * training.recipe.element + read(training)) * width / ranks


@checked
def rounded(training: Training) -> bool:
    """Tell whether what the layers' products read is kept in 8 bits."""
    return training.precision == "fp8" and training.program.keeps_rounded


@checked
def read(training: Training) -> int:
    """Return the bytes of a number that a layer's product reads, as it is kept for backward."""
    return 1 if rounded(training) else training.recipe.element


@checked
def between(training: Training) -> float:
    """Count a rank's tokens between the matrices: in norms, residuals, and their inputs."""
    return training.tokens / (training.layout.tp if training.layout.sequence_parallel else 1)


@checked
def unfused(training: Training, kernel: str) -> bool:
    """Tell whether the program runs a kernel of `Program.unfused` as separate operations.

    GPT's norms and GELU are one operation each in any case.
    """
    has_it = training.spec.style == "llama" or kernel == "experts"
    return has_it and kernel in training.program.unfused
