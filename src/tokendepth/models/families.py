"""The families of transformers that the decoder knows, as tables of facts and of names."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tokendepth.models import facts, layouts
from tokendepth.models.facts import Translation
from tokendepth.models.layouts import Part, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What sets a family apart. Embedding and head are found by asking the model."""

    same: Mapping[str, str]
    """Facts of ours to settings of theirs that hold the same value."""
    always: Mapping[str, Any] = field(default_factory=dict)
    """Facts of ours that hold for every model of the family; others have their default."""
    on: tuple[str, ...] = ()
    """Settings of theirs that the decoder knows switched on alone."""
    off: tuple[str, ...] = ()
    """Settings of theirs that it knows switched off alone."""
    translated: tuple[Translation, ...] = ()
    dropouts: tuple[str, ...] = ()
    """Settings of theirs that our one dropout stands for."""
    rotary: str | None = None
    """Their module with the frequencies."""
    top: Mapping[str, Part]
    blocks: str
    """Their list of blocks."""
    parts: Mapping[str, Part]
    """Their modules within a block."""


_SIZES = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "num_blocks": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "max_positions": "max_position_embeddings",
}
_GATED = {
    "mlp.gate_proj": plain("feed_forward.gate"),
    "mlp.up_proj": plain("feed_forward.up"),
    "mlp.down_proj": plain("feed_forward.down"),
}
_SEPARATE = {
    "self_attn.q_proj": plain("attention.query"),
    "self_attn.k_proj": plain("attention.key"),
    "self_attn.v_proj": plain("attention.value"),
}
_QUERY_KEY_NORM = {
    "self_attn.q_norm": plain("attention.query_norm"),
    "self_attn.k_norm": plain("attention.key_norm"),
}
_LAYER_NORM = {"norm": "layer", "gated": False}
_BIASES = {"attention_bias": True, "output_bias": True, "feed_forward_bias": True}

_LLAMA = Family(
    same={
        **_SIZES,
        "num_key_value_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "inner_width": "intermediate_size",
        "norm_epsilon": "rms_norm_eps",
        "attention_bias": "attention_bias",
        "output_bias": "attention_bias",
        "feed_forward_bias": "mlp_bias",
    },
    translated=(facts.activation("hidden_act"), facts.rotary()),
    dropouts=("attention_dropout",),
    rotary="model.rotary_emb",
    top={"model.norm": plain("final_norm")},
    blocks="model.layers",
    parts={
        **_SEPARATE,
        **_GATED,
        "self_attn.o_proj": plain("attention.output"),
        "input_layernorm": plain("attention_norm"),
        "post_attention_layernorm": plain("feed_forward_norm"),
    },
)


def _without(same: Mapping[str, str], *names: str) -> dict[str, str]:
    return {ours: theirs for ours, theirs in same.items() if ours not in names}


_UNBIASED = _without(_LLAMA.same, "attention_bias", "output_bias", "feed_forward_bias")
_MISTRAL = replace(_LLAMA, same=_UNBIASED, translated=(*_LLAMA.translated, facts.one_window()))
_QWEN2 = replace(
    _LLAMA,
    same=_without(_UNBIASED, "head_dim"),
    always={"attention_bias": True},
    translated=(
        *_LLAMA.translated,
        facts.even_heads(),
        facts.windows_by_block("use_sliding_window"),
    ),
)
_QWEN3 = replace(
    _LLAMA,
    same=_without(_LLAMA.same, "feed_forward_bias"),
    always={"query_key_norm": True},
    translated=(*_LLAMA.translated, facts.windows_by_block("use_sliding_window")),
    parts={**_LLAMA.parts, **_QUERY_KEY_NORM},
)
_GEMMA2 = replace(
    _LLAMA,
    same={
        **_without(_LLAMA.same, "feed_forward_bias"),
        "attention_cap": "attn_logit_softcapping",
        "logit_cap": "final_logit_softcapping",
    },
    always={"gains_from_one": True, "post_norms": True},
    off=("use_bidirectional_attention",),
    translated=(
        facts.activation("hidden_activation"),
        facts.rotary(),
        facts.windows_by_block(),
        facts.scale_by_scalar("query_pre_attn_scalar"),
        facts.embedding_by_root(),
    ),
    parts={
        **_LLAMA.parts,
        "post_attention_layernorm": plain("attention_post_norm"),
        "pre_feedforward_layernorm": plain("feed_forward_norm"),
        "post_feedforward_layernorm": plain("feed_forward_post_norm"),
    },
)
_GEMMA3 = replace(
    _GEMMA2,
    same=_without(_GEMMA2.same, "attention_cap"),
    always={**_GEMMA2.always, "query_key_norm": True},
    off=(*_GEMMA2.off, "attn_logit_softcapping"),
    translated=(
        facts.activation("hidden_activation"),
        facts.rotary_by_window(),
        *_GEMMA2.translated[2:],
    ),
    parts={**_GEMMA2.parts, **_QUERY_KEY_NORM},
)

_GPT2 = Family(
    same={**_SIZES, "norm_epsilon": "layer_norm_epsilon"},
    always={**_LAYER_NORM, **_BIASES, "positions": "learned"},
    off=("scale_attn_by_inverse_layer_idx", "add_cross_attention"),
    translated=(
        facts.activation("activation_function"),
        facts.even_heads(),
        facts.inner_width("n_inner"),
        facts.scaled_or_not("scale_attn_weights"),
    ),
    dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    top={
        "transformer.wpe": plain("position_embedding"),
        "transformer.ln_f": plain("final_norm"),
    },
    blocks="transformer.h",
    parts={
        "ln_1": plain("attention_norm"),
        "attn.c_attn": layouts.fused_transposed(),
        "attn.c_proj": layouts.transposed("attention.output"),
        "ln_2": plain("feed_forward_norm"),
        "mlp.c_fc": layouts.transposed("feed_forward.up"),
        "mlp.c_proj": layouts.transposed("feed_forward.down"),
    },
)
_GPT_NEOX = Family(
    same={
        **_SIZES,
        "inner_width": "intermediate_size",
        "norm_epsilon": "layer_norm_eps",
        "parallel": "use_parallel_residual",
        "attention_bias": "attention_bias",
        "output_bias": "attention_bias",
    },
    always={**_LAYER_NORM, "feed_forward_bias": True},
    translated=(
        facts.activation("hidden_act"),
        facts.even_heads(),
        facts.rotary(partial=True),
    ),
    dropouts=("attention_dropout", "hidden_dropout"),
    rotary="gpt_neox.rotary_emb",
    top={"gpt_neox.final_layer_norm": plain("final_norm")},
    blocks="gpt_neox.layers",
    parts={
        "input_layernorm": plain("attention_norm"),
        "post_attention_layernorm": plain("feed_forward_norm"),
        "attention.query_key_value": layouts.fused_by_head(),
        "attention.dense": plain("attention.output"),
        "mlp.dense_h_to_4h": plain("feed_forward.up"),
        "mlp.dense_4h_to_h": plain("feed_forward.down"),
    },
)
_ONE_NORM = {**_LAYER_NORM, "parallel": True, "shared_norm": True, "feed_forward_bias": True}
_GPTJ = Family(
    same={**_SIZES, "norm_epsilon": "layer_norm_epsilon", "rotary_width": "rotary_dim"},
    always={**_ONE_NORM, "head_bias": True},
    translated=(
        facts.activation("activation_function"),
        facts.even_heads(),
        facts.inner_width("n_inner"),
    ),
    dropouts=_GPT2.dropouts,
    top={"transformer.ln_f": plain("final_norm")},
    blocks="transformer.h",
    parts={
        "ln_1": plain("attention_norm"),
        "attn.q_proj": layouts.paired("attention.query"),
        "attn.k_proj": layouts.paired("attention.key"),
        "attn.v_proj": plain("attention.value"),
        "attn.out_proj": plain("attention.output"),
        "mlp.fc_in": plain("feed_forward.up"),
        "mlp.fc_out": plain("feed_forward.down"),
    },
)
_PHI = Family(
    same={
        **_SIZES,
        "num_key_value_heads": "num_key_value_heads",
        "inner_width": "intermediate_size",
        "norm_epsilon": "layer_norm_eps",
    },
    always={**_ONE_NORM, **_BIASES, "head_bias": True},
    off=("qk_layernorm",),
    translated=(
        facts.activation("hidden_act"),
        facts.even_heads(),
        facts.rotary(partial=True),
    ),
    dropouts=("resid_pdrop", "embd_pdrop", "attention_dropout"),
    rotary="model.rotary_emb",
    top={"model.final_layernorm": plain("final_norm")},
    blocks="model.layers",
    parts={
        **_SEPARATE,
        "self_attn.dense": plain("attention.output"),
        "input_layernorm": plain("attention_norm"),
        "mlp.fc1": plain("feed_forward.up"),
        "mlp.fc2": plain("feed_forward.down"),
    },
)
_OPT = Family(
    same={
        **_SIZES,
        "inner_width": "ffn_dim",
        "attention_bias": "enable_bias",
        "output_bias": "enable_bias",
        "feed_forward_bias": "enable_bias",
    },
    always={**_LAYER_NORM, "positions": "learned"},
    on=("do_layer_norm_before", "layer_norm_elementwise_affine"),
    off=("_remove_final_layer_norm",),
    translated=(
        facts.activation("activation_function"),
        facts.even_heads(),
        facts.width_of_its_own("word_embed_proj_dim"),
    ),
    dropouts=("dropout", "attention_dropout"),
    top={
        "model.decoder.embed_positions": layouts.offset_positions("position_embedding"),
        "model.decoder.final_layer_norm": plain("final_norm"),
    },
    blocks="model.decoder.layers",
    parts={
        **_SEPARATE,
        "self_attn.out_proj": plain("attention.output"),
        "self_attn_layer_norm": plain("attention_norm"),
        "final_layer_norm": plain("feed_forward_norm"),
        "fc1": plain("feed_forward.up"),
        "fc2": plain("feed_forward.down"),
    },
)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "gpt2": _GPT2,
    "gpt_neox": _GPT_NEOX,
    "gptj": _GPTJ,
    "phi": _PHI,
    "opt": _OPT,
}
"""By what transformers calls them (`config.model_type`)."""
