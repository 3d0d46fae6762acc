"""Mixtures of experts: their sizes, and their total and active parameters, counted part by part.

A router sends each token to a few of many feed-forward blocks, the experts (Shazeer et al. 2017,
https://arxiv.org/abs/1701.06538). Layers as in Mixtral (https://arxiv.org/abs/2401.04088) and in
DeepSeek-V3 (https://arxiv.org/abs/2412.19437): RMSNorm, SwiGLU, no biases, untied head. The
mixtures are the rows of `mixtures.csv`.
"""

from dataclasses import dataclass

from shardlab.files.arguments import checked
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec

from . import models, tables


@dataclass(frozen=True, kw_only=True)
@checked
class PublishedMixture:
    """A published mixture of experts."""

    name: str
    spec: TransformerSpec
    parameters: int | None  # of the released checkpoint
    printed: tuple[float, float]  # total and active, as its authors round them
    date: str  # of publication, year-month
    source: str


PUBLISHED = {each.name: each for each in tables.rows("mixtures", PublishedMixture)}


@checked
def parameters(spec: TransformerSpec) -> dict[str, int]:
    """Count the parameters of each part of a mixture, exactly, as a released checkpoint has them.

    A bias that balances a router counts as part of the router. No gradient trains it, so
    `models.parameters` and the states of a rank leave it out. Errors: ValueError without experts.
    """
    return _parts(spec, _rules(spec).num_experts)


@checked
def active_parameters(spec: TransformerSpec) -> dict[str, int]:
    """Count the parameters of each part of a mixture that one token uses.

    A token uses one row of the token embedding, so some authors leave that part out. Errors:
    ValueError without experts.
    """
    return _parts(spec, _rules(spec).per_token)


@checked
def published(name: str) -> PublishedMixture:
    """Return the published mixture called `name`. Errors: ValueError that lists the known names."""
    if name not in PUBLISHED:
        raise ValueError(f"no published sizes of {name!r}; known: {', '.join(PUBLISHED)}")
    return PUBLISHED[name]


@checked
def spec_of(name: str) -> TransformerSpec:
    """Return the sizes of a published model, dense or a mixture.

    Errors: ValueError that lists the known names.
    """
    found = models.PUBLISHED.get(name) or PUBLISHED.get(name)
    if not found:
        raise ValueError(
            f"no published sizes of {name!r}; known: {', '.join([*models.PUBLISHED, *PUBLISHED])}; "
            "`hugging_face.read` reads those of a config.json"
        )
    return found.spec


def _rules(spec: TransformerSpec) -> Experts:
    if spec.experts is None:
        raise ValueError("the model has no experts; count it with models.parameters")
    return spec.experts


def _parts(spec: TransformerSpec, experts: int) -> dict[str, int]:
    """Count the parts; of the routed experts, `experts` in each layer."""
    rules, whole = _rules(spec), models.parameters(spec)
    sparse = spec.num_blocks - spec.num_dense
    biases = (rules.balance == "bias") + ("ffn" in spec.biases)
    router = rules.num_experts * (spec.hidden_size + biases)
    return {
        "token embedding": whole["token embedding"],
        "attention": whole["attention"],
        "dense feed-forward": spec.num_dense * models.feed_forward_parameters(spec.dense),
        "routers": sparse * router,
        "shared experts": sparse * models.shared_parameters(spec),
        "routed experts": sparse * experts * models.expert_parameters(spec),
        "norms": whole["norms"],
        "head": whole["head"],
    }
