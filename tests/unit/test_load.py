"""Loading by name, folder and hub name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file

import tokendepth


def test_a_folder_loads_offline_in_float32(model_folder: Path, tokenizer: Any) -> None:
    loaded = tokendepth.load(model_folder)
    assert loaded.title == "tiny-llama"
    assert loaded.view.num_layers == 4
    assert loaded.view.dtype == torch.float32
    assert not loaded.model.training
    assert loaded.tokenizer("the 🙂")["input_ids"] == tokenizer("the 🙂")["input_ids"]
    assert loaded.tokenizer.chat_template == tokenizer.chat_template


def test_the_weights_are_those_that_were_saved(model_folder: Path, llama: Any) -> None:
    assert tokendepth.load(str(model_folder)).weights_hash == llama.weights_hash


def test_one_changed_weight_changes_the_hash(make_model: Any, llama: Any) -> None:
    model = make_model("Llama")
    model.model.layers[3].mlp.up_proj.weight.data[0, 0] += 1e-6
    changed = tokendepth.Loaded(title="", model=model, tokenizer=None)
    assert changed.weights_hash != llama.weights_hash


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float64])
def test_a_dtype_by_name_or_value(dtype: Any, model_folder: Path) -> None:
    expected = torch.bfloat16 if dtype == "bfloat16" else dtype
    assert tokendepth.load(model_folder, dtype).view.dtype == expected


def test_dtype_auto_is_one_of_two(model_folder: Path) -> None:
    assert tokendepth.load(model_folder, "auto").view.dtype in (torch.float32, torch.bfloat16)


def test_an_unknown_dtype(model_folder: Path) -> None:
    with pytest.raises(ValueError, match="^dtype: got 'float12'; allowed are float32"):
        tokendepth.load(model_folder, dtype="float12")


def test_a_gpu_that_is_not_there(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="^device: got 'cuda'"):
        tokendepth.load(model_folder, device="cuda")


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^model: the folder .* has no config.json"):
        tokendepth.load(tmp_path)


def test_a_folder_without_weights(model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(model_folder, tmp_path / "m", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ValueError, match="^model: .* could not be loaded"):
        tokendepth.load(tmp_path / "m")


def test_a_folder_with_damaged_weights(model_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(model_folder, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises((ValueError, OSError), match="^model: .*damaged"):
        tokendepth.load(folder)


def test_a_folder_that_lacks_weights(model_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lacking"
    shutil.copytree(model_folder, folder)
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "layers.1.mlp" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(tokendepth.FetchError, match=r"incomplete: 3 are missing.*layers\.1\.mlp"):
        tokendepth.load(folder)


def test_a_misspelt_name_is_corrected() -> None:
    with pytest.raises(ValueError, match=r"^model: got 'smolm2'.*known name \(smollm2\)") as caught:
        tokendepth.load("smolm2")
    assert "Did you mean smollm2?" in str(caught.value)


@pytest.mark.parametrize("name", ["nothing-alike", "./no/such", "/no/folder", "a/b/c"])
def test_a_name_that_is_neither(name: str) -> None:
    with pytest.raises(ValueError, match="^model: got .*neither a known name") as caught:
        tokendepth.load(name)
    assert "Did you mean" not in str(caught.value)


def test_a_hub_name_offline_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="^model: 'nobody/nothing' .*HF_HUB_OFFLINE is set"):
        tokendepth.load("nobody/nothing")


def test_a_hub_that_cannot_be_reached_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any, **kwargs: Any) -> None:
        raise OSError("We couldn't connect") from LocalEntryNotFoundError("no connection")

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", unreachable)
    with pytest.raises(tokendepth.FetchError, match="^model: 'a/b' could not be fetched") as caught:
        tokendepth.load("a/b")
    assert "Ways out" in str(caught.value)


@pytest.mark.slow
def test_a_hub_at_a_closed_port_is_a_failure(tmp_path: Path) -> None:
    """The hub's client itself, which tries again for most of a minute."""
    code = (
        "import tokendepth\n"
        "try:\n    tokendepth.load('nobody/nothing')\n"
        "except tokendepth.FetchError as error:\n    raise SystemExit(f'FetchError {error}')\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    env |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "NO_PROXY": "*"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False
    )
    assert "FetchError model: 'nobody/nothing' could not be fetched" in done.stderr
    assert "Ways out" in done.stderr
