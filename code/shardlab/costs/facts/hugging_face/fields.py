"""The fields of a `config.json`: each is used, or known to change no size, or refused by its name.

A field that a file leaves out has the default of the architecture's class in transformers
(https://github.com/huggingface/transformers/tree/v4.51.3/src/transformers/models).
"""

from collections.abc import Mapping
from typing import Any

from shardlab.sharding.layout import listed

from .. import limits

IGNORED = frozenset(
    (
        # the file itself, and the program that wrote it
        *("_name_or_path", "model_type", "auto_map", "transformers_version", "unsloth_fixed"),
        *("dtype", "torch_dtype", "use_cache", "cache_implementation", "task_specific_params"),
        # tokens with a meaning, and where training began
        *("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range"),
        # how positions turn, and what norms and activation functions compute
        *("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq"),
        *("rotary_pct", "rotary_emb_base", "partial_rotary_factor", "rope_interleave"),
        *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
        *("hidden_act", "hidden_activation", "activation_function"),
        # what attention does to its scores, and which tokens it leaves out
        *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
        *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"),
        *("max_window_layers", "sliding_window_pattern", "sliding_window_size", "pretraining_tp"),
        # heads for other tasks than the next token
        *("classifier_dropout", "summary_type", "summary_use_proj", "summary_activation"),
        *("summary_proj_to_labels", "summary_first_dropout"),
        # how a router chooses, and what training adds to the loss
        *("router_aux_loss_coef", "router_jitter_noise", "output_router_logits", "aux_loss_alpha"),
        *("norm_topk_prob", "scoring_func", "routed_scaling_factor", "n_group", "topk_group"),
        *("seq_aux", "ep_size"),
    )
)
DROPOUTS = (
    *("attention_dropout", "hidden_dropout"),
    *("attn_pdrop", "embd_pdrop", "resid_pdrop"),
)
ATTENTIONS = {"full_attention", "sliding_attention"}  # of a layer, in `layer_types`


class Fields:
    """The fields of a file; each is taken once, and those that are left are known."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.left = set(config)
        self.notes: list[str] = []

    def take(self, name: str, kind: Any, *default: Any) -> Any:
        """Take a field that must be of a kind; without a default it must be there."""
        self.left.discard(name)
        value = self.config.get(name)
        if value is None and default:
            return default[0]
        if value is None:
            raise ValueError(f"the file has no {name}; use the config.json of a language model")
        wrong = isinstance(value, bool) and kind is not bool
        if wrong or not isinstance(value, kind):
            raise ValueError(f"{name}={value!r} must be {KINDS[kind]}")
        return value

    def count(self, name: str, *default: int | None) -> Any:
        """Take a size: a whole number from 1 to the limit of layers or of other sizes."""
        value = self.take(name, int, *default)
        if value is not None:
            limits.hold(name, value, limits.LAYERS if "layer" in name else limits.SIZE)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Take a field that is true or false."""
        return bool(self.take(name, bool, default))

    def only(self, name: str, *allowed: Any) -> None:
        """Take a field that may be left out, and otherwise must have one of the values."""
        self.left.discard(name)
        if name in self.config and self.config[name] not in allowed:
            raise ValueError(
                f"{name}={self.config[name]!r} is not understood; with this architecture only "
                f"{listed(map(repr, allowed))} can be counted"
            )

    def ignore(self, *names: str) -> None:
        """Leave out fields on which no size of this architecture depends."""
        self.left.difference_update(names)

    def dropout(self) -> bool:
        """Tell whether the model drops numbers everywhere, as GPT-2 does, or nowhere."""
        shares = {name: self.take(name, (int, float), 0) for name in DROPOUTS if name in self.left}
        if len({share > 0 for share in shares.values()}) > 1:
            given = ", ".join(f"{name}={share}" for name, share in shares.items())
            raise ValueError(
                f"{given} drops numbers in some places and not in others; set all of them to 0, "
                "or none, in a copy of the file"
            )
        return any(shares.values())

    def note(self) -> None:
        """Take fields that change no parameter, and note what the times and bytes leave out."""
        self.left.discard("use_sliding_window")
        layers = self.take("layer_types", list, [])
        if unknown := [each for each in layers if str(each) not in ATTENTIONS]:
            raise ValueError(f"layer_types has {unknown[0]!r}; known: {listed(sorted(ATTENTIONS))}")
        window = self.take("sliding_window", int, None)
        if window and self.flag("use_sliding_window", True):
            self.notes.append(
                f"sliding_window={window}: attention is timed over all earlier tokens"
            )
        if self.take("quantization_config", dict, None):
            self.notes.append("quantization_config: ignored, the plan's recipe sets the formats")
        more = self.take("num_nextn_predict_layers", int, 0)
        if more:
            self.notes.append(f"num_nextn_predict_layers={more}: their parameters are not counted")

    def refuse_others(self, architecture: str) -> None:
        """Raise ValueError for the first field that nobody took and that is not IGNORED."""
        if others := sorted(self.left - IGNORED):
            value = self.config[others[0]]
            raise ValueError(
                f"{architecture} has the field {others[0]}={value!r}, which is not understood; "
                "remove it from a copy of the file if no size depends on it"
            )


KINDS: dict[Any, str] = {
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    (int, float): "a number",
}
