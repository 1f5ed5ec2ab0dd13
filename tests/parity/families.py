"""Small configs of every known family, weights away from where they start."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB, LENGTH = 61, 12
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_GROUPED = {**_SIZES, "intermediate_size": 40, "num_key_value_heads": 2}
_WINDOWS = {
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_QWEN_WINDOWS = {**_WINDOWS, "use_sliding_window": True}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_LINEAR = {"rope_type": "linear", "factor": 2.5, "rope_theta": 800.0}
_GEMMA = {**_GROUPED, **_WINDOWS, "head_dim": 6, "query_pre_attn_scalar": 11}
_PARTIAL = {**_SIZES, "intermediate_size": 48}
CASES = {
    "llama": ("llama", _GROUPED),
    "llama-tied": ("llama", {**_GROUPED, "tie_word_embeddings": True}),
    "llama-biases": ("llama", {**_GROUPED, "attention_bias": True, "mlp_bias": True}),
    "llama-3": ("llama", {**_GROUPED, "rope_parameters": _LLAMA3, "head_dim": 12}),
    "llama-linear": ("llama", {**_GROUPED, "rope_parameters": _LINEAR}),
    "mistral": ("mistral", {**_GROUPED, "sliding_window": 5}),
    "mistral-whole": ("mistral", {**_GROUPED, "sliding_window": None, "head_dim": 6}),
    "qwen2": ("qwen2", {**_GROUPED, "tie_word_embeddings": True}),
    "qwen2-windows": ("qwen2", {**_GROUPED, **_QWEN_WINDOWS}),
    "qwen3": ("qwen3", {**_GROUPED, "head_dim": 12}),
    "qwen3-windows": ("qwen3", {**_GROUPED, **_QWEN_WINDOWS, "attention_bias": True}),
    "gemma2": ("gemma2", {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma2-uncapped": (
        "gemma2",
        {**_GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": ("gemma3_text", {**_GEMMA, "head_dim": 8}),
    "gemma3-stretched": (
        "gemma3_text",
        {
            **_GEMMA,
            "rope_parameters": {
                "full_attention": _LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
            "tie_word_embeddings": False,
        },
    ),
    "gpt2": ("gpt2", {**_SIZES, "n_inner": 40}),
    "gpt2-unscaled": (
        "gpt2",
        {**_SIZES, "scale_attn_weights": False, "tie_word_embeddings": False},
    ),
    "gpt_neox": (
        "gpt_neox",
        {**_PARTIAL, "rope_parameters": {"rope_theta": 900.0, "partial_rotary_factor": 0.5}},
    ),
    "gpt_neox-sequential": (
        "gpt_neox",
        {**_PARTIAL, "use_parallel_residual": False, "attention_bias": False},
    ),
    "gptj": ("gptj", {**_SIZES, "rotary_dim": 4, "n_inner": 48}),
    "gptj-whole": ("gptj", {**_SIZES, "rotary_dim": 8}),
    "phi": ("phi", {**_PARTIAL, "num_key_value_heads": 2}),
    "opt": ("opt", {**_SIZES, "ffn_dim": 48}),
    "opt-unbiased": ("opt", {**_SIZES, "ffn_dim": 48, "enable_bias": False}),
}


def build(name, **changes):
    """A model of a case, all its weights random and none of them as it started."""
    family, settings = CASES[name]
    config = AutoConfig.for_model(family, **{**settings, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def batch(side):
    """Ids and mask of three rows, two of them padded."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(VOCAB, (3, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    for row, pads in enumerate((9, 0, 4)):
        mask[row, slice(0, pads) if side == "left" else slice(LENGTH - pads, LENGTH)] = 0
    return ids, mask


@torch.no_grad()
def expected(model, ids, mask):
    """Their logits; positions are given, since some of them count padding without."""
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    return model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
