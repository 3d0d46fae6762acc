"""The matrix products of one layer on one rank, as their sizes: what `layer_time` times."""

from math import prod

from shardlab.files.arguments import checked
from shardlab.model.recurrent import Recurrent

from ..memory import activations
from ..training import Training


@checked
def matrices(training: Training) -> list[tuple[int, int, int]]:
    """List the products of one rank as (tokens, inputs, outputs), in order of forward.

    [tokens, inputs] times [inputs, outputs]: queries, keys and values; attention's output; up (and
    gate); down. In a mixture the router comes third, then the shared experts as one block, if any;
    `expert_matrices` has the routed ones.
    """
    spec = training.spec
    tp = training.layout.tp
    tokens = training.tokens
    keys = training.layout.kv_heads(spec) * spec.head_size
    width = spec.attention_size // tp
    hidden = activations.dense_width(spec) // tp
    # Matrices of the feed-forward block that read x.
    readers = 1 + spec.has_gate
    read = (1 + spec.output_gate) * width + 2 * keys
    sizes = [(tokens, spec.hidden_size, read), (tokens, width, spec.hidden_size)]
    if spec.latent:  # into the narrow layers, and from there to heads
        latent, heads = spec.latent, spec.num_heads // tp
        sizes = [
            (tokens, spec.hidden_size, latent.narrow_size),
            (
                tokens,
                latent.query_rank or spec.hidden_size,
                heads * latent.query_size + latent.index_size,
            ),
            (tokens, latent.kv_rank, heads * (latent.plain_size + latent.value_size)),
            (tokens, heads * latent.value_size, spec.hidden_size),
        ]
    if spec.states_only:
        sizes = _recurrent(training, spec.states_only)
    if spec.blocks_only:
        sizes = []
    if spec.experts:
        sizes.append((tokens, spec.hidden_size, spec.experts.num_experts))
    if hidden:
        sizes.append((tokens, spec.hidden_size, readers * hidden))
        sizes.append((tokens, hidden, spec.hidden_size))
    return sizes


def _recurrent(training: Training, recurrent: Recurrent) -> list[tuple[int, int, int]]:
    """List the products of a layer with states but for those of the rule itself."""
    hidden, tp = training.spec.hidden_size, training.layout.tp
    shapes = {name: shape for name, (shape, _) in recurrent.shapes(hidden).items()}
    entering = shapes["in.weight"][0] // tp + recurrent.narrow
    sizes = [(training.tokens, hidden, entering)]
    if recurrent.narrow:
        outputs, inputs = shapes["wide.weight"]
        sizes.append((training.tokens, inputs, outputs // tp))
    return [*sizes, (training.tokens, recurrent.values // tp, hidden)]


@checked
def repeated_share(training: Training) -> float:
    """Return the share of a layer's FLOPs in products that backward repeats, from 0 to 1.

    Those are the program's `Kernels.repeated`, whose results `memory.activations` does not keep.
    """
    repeated = training.program.kernels.repeated
    if not repeated:
        return 0.0
    every = sum(prod(size) for size in matrices(training))
    if training.spec.experts:
        held, sizes = expert_matrices(training)
        every += held * sum(prod(size) for size in sizes)
    again = sum(prod(size) for name, *size in activations.results(training) if name in repeated)
    return again / every


@checked
def expert_matrices(training: Training) -> tuple[int, list[tuple[int, int, int]]]:
    """Count the routed experts on a rank; list the products of each: up (and gate), then down.

    All ranks that hold different experts send tokens to each of them, in equal shares. Whole
    experts are as wide as the model's, and fewer.

    Errors: ValueError without experts.
    """
    spec = training.spec
    if spec.experts is None:
        raise ValueError("spec has no experts; use one with experts=Experts(...)")
    held = spec.experts.num_experts // training.layout.expert_ranks
    rows = max(1, training.routed_tokens // held)
    width = spec.experts.expert_size // training.layout.expert_tp
    reading = (1 + spec.has_gate) * width
    return held, [(rows, spec.hidden_size, reading), (rows, width, spec.hidden_size)]
