"""Weights of transformers' models as our decoder's.

A family is a table of names; nothing branches on a class. Rotary frequencies are copied from the
model, so that every static scaling of them comes along.
"""

from typing import Any

import torch
from torch import nn

from tokendepth.models.config import DecoderConfig
from tokendepth.models.decoder import Decoder

_LLAMA = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
FAMILIES = {"llama": _LLAMA}


def from_transformers(model: nn.Module, *, key_value_rule: str = "all") -> Decoder:
    """Our decoder with a copy of the weights of a causal language model of transformers.

    Args:
        model: of a known family; it is not changed.
        key_value_rule: keys and values of skipped rows: all, kept or carried.

    Raises:
        ValueError: an unknown family, or a feature of a known one that the decoder lacks.
    """
    config: Any = getattr(model, "config", None)
    family = getattr(config, "model_type", type(model).__name__)
    if family not in FAMILIES:
        raise ValueError(
            f"model: the family {family!r} has no decoder here; known families are "
            f"{', '.join(FAMILIES)}. Measures (tokendepth.map, capture, Lens) work on any causal "
            "language model of transformers."
        )
    _check_features(config)
    ours = DecoderConfig(
        vocab_size=config.vocab_size,
        width=config.hidden_size,
        num_blocks=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        inner_width=config.intermediate_size,
        rotary_base=config.rope_parameters["rope_theta"],
        rotary_scaling=model.get_submodule("model.rotary_emb").attention_scaling,  # pyright: ignore
        norm_epsilon=config.rms_norm_eps,
        attention_bias=config.attention_bias,
        output_bias=config.attention_bias,
        feed_forward_bias=config.mlp_bias,
        tied_head=config.tie_word_embeddings,
        max_positions=config.max_position_embeddings,
        key_value_rule=key_value_rule,  # pyright: ignore
    )
    theirs = model.state_dict()
    weights = {
        "embedding.weight": theirs["model.embed_tokens.weight"],
        "final_norm.weight": theirs["model.norm.weight"],
        "head.weight": theirs["lm_head.weight"],
        "rotary.frequencies": model.get_buffer("model.rotary_emb.inv_freq"),
    }
    for block in range(ours.num_blocks):
        for mine, name in FAMILIES[family].items():
            for kind in ("weight", "bias"):
                source = f"model.layers.{block}.{name}.{kind}"
                if source in theirs:
                    weights[f"blocks.{block}.{mine}.{kind}"] = theirs[source]
    with torch.random.fork_rng(devices=[]):
        decoder = Decoder(ours)
    reference = theirs["model.embed_tokens.weight"]
    decoder = decoder.to(device=reference.device, dtype=reference.dtype)
    decoder.load_state_dict(weights)
    return decoder.train(model.training)


def _check_features(config: Any) -> None:
    if config.hidden_act != "silu":
        raise ValueError(f"model: the activation {config.hidden_act!r} is not known; only silu is")
    if config.rope_parameters["rope_type"] in ("dynamic", "longrope"):
        raise ValueError(
            f"model: rotary type {config.rope_parameters['rope_type']!r} changes with the length "
            "of the text, which the decoder does not do"
        )
