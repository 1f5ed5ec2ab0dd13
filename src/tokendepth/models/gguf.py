"""A GGUF file of a Llama-style model, dequantised into a folder that transformers loads.

Weights become float32, so that the quantisation of the file is the only loss. GGUF stores the rows
of the query and key projections so that the two halves a rotary embedding turns into each other
lie side by side; transformers keeps them half a head apart, and the rows are put back here.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3


def convert(file: Path, folder: Path) -> None:
    """Write config, weights (safetensors, float32), tokenizer and chat template into `folder`.

    Raises:
        OSError: the disk is full or the folder cannot be written.
        ValueError: the file is not of the Llama architecture with a byte-level BPE tokenizer.
    """
    reader = GGUFReader(file)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    if facts["general.architecture"] != "llama" or facts["tokenizer.ggml.model"] != "gpt2":
        raise ValueError(
            f"file: {file} holds the architecture {facts['general.architecture']!r} with the "
            f"tokenizer {facts['tokenizer.ggml.model']!r}; only 'llama' with 'gpt2' is read here"
        )
    weights = _weights(reader, facts)
    _config(facts, tied="lm_head.weight" not in weights).save_pretrained(folder)
    _tokenizer(facts).save_pretrained(folder)
    try:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # its own class, also for a full disk
        raise OSError(f"{folder / 'model.safetensors'}: {error}") from error


def _weights(reader: GGUFReader, facts: dict[str, Any]) -> dict[str, torch.Tensor]:
    heads = {
        "attn_q": facts["llama.attention.head_count"],
        "attn_k": facts["llama.attention.head_count_kv"],
    }
    weights = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in _TOP:
            name = _TOP[tensor.name]
        else:
            _, layer, part, kind = tensor.name.split(".")
            name = f"model.layers.{layer}.{_IN_BLOCK[part]}.{kind}"
            if part in heads:
                values = _halves_apart(values, heads[part])
        weights[name] = torch.from_numpy(np.array(values, dtype=np.float32))
    return weights


def _halves_apart(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows (head, pair, half) to rows (head, half, pair)."""
    rows = values.shape[0]
    paired = values.reshape(num_heads, rows // num_heads // 2, 2, *values.shape[1:])
    return paired.swapaxes(1, 2).reshape(values.shape)


def _config(facts: dict[str, Any], *, tied: bool) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=facts["llama.vocab_size"],
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        max_position_embeddings=facts["llama.context_length"],
        rms_norm_eps=facts["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": facts["llama.rope.freq_base"]},
        tie_word_embeddings=tied,
        bos_token_id=facts["tokenizer.ggml.bos_token_id"],
        eos_token_id=facts["tokenizer.ggml.eos_token_id"],
        pad_token_id=facts["tokenizer.ggml.padding_token_id"],
        dtype="float32",
    )


def _tokenizer(facts: dict[str, Any]) -> Any:
    """The file's byte-level BPE. Its pre-tokenizer `smollm` splits single digits off first."""
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    bpe = models.BPE({token: index for index, token in enumerate(tokens)}, merges)
    backend = Tokenizer(bpe)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if facts["tokenizer.ggml.pre"] == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    else:
        backend.pre_tokenizer = byte_level
    backend.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    backend.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    named = {
        f"{role}_token": tokens[facts[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=facts["llama.context_length"],
        clean_up_tokenization_spaces=False,
        **named,
    )
    tokenizer.chat_template = facts["tokenizer.chat_template"]
    return tokenizer
