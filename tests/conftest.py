"""Tiny random models, a byte-level tokenizer and the real model; all but the last need no network.

`tokendepth` and `transformers` are imported inside the fixtures: the shape checks of the package
are switched on by pytest after this file is read.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the hub client when it is first imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"

if "PYTEST_XDIST_WORKER" in os.environ:  # one core a worker, also in the processes they start
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

_without_data: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember which tests were skipped for want of data."""
    if report.skipped and "TOKENDEPTH_DATA" in str(report.longrepr):
        _without_data.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Under CI, data that is named must be there: a skipped test fails the whole."""
    if os.environ.get("CI") and os.environ.get("TOKENDEPTH_DATA") and _without_data:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests those were."""
    if os.environ.get("TOKENDEPTH_DATA"):
        for test in _without_data:
            terminalreporter.write_line(f"$TOKENDEPTH_DATA lacks what this needs: {test}")


VOCAB, WIDTH, LAYERS, POSITIONS = 320, 32, 4, 64
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_GROUPED = {**_SIZES, "intermediate_size": 64, "num_key_value_heads": 2}
_CONFIGS: dict[str, dict[str, Any]] = {
    "GPT2": {
        "vocab_size": VOCAB,
        "n_embd": WIDTH,
        "n_layer": LAYERS,
        "n_head": 4,
        "n_positions": POSITIONS,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
    "GPTNeoX": {**_SIZES, "intermediate_size": 64},
    "OPT": {**_SIZES, "ffn_dim": 64, "word_embed_proj_dim": WIDTH, "do_layer_norm_before": True},
    "Llama": _GROUPED,
    "Qwen3": {**_GROUPED, "head_dim": 8},
    "Phi": {**_SIZES, "intermediate_size": 64},
    "Gemma2": {**_GROUPED, "head_dim": 8},
    "Cohere": {**_GROUPED, "logit_scale": 0.7},
    "Granite": {**_GROUPED, "logits_scaling": 4.0},
}
FAMILIES = tuple(_CONFIGS)
SMALL_TEXTS = ("To be, or not to be.", "Naïve 🙂!\n", "The question is: that the thing is done?")
_MERGED = (" the", " to", " be", " that", "ing", " question", " is", " of", "The", "To")
_SPECIAL = ("<|im_start|>", "<|im_end|>", "<unk>", "<pad>")
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_model(family: str, **changes: Any) -> Any:
    """A random model, weights and gains and biases all away from where they started."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**{**_CONFIGS[family], **changes})
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        if family == "Gemma2":  # so that the logits lie beyond the soft-cap
            model.get_input_embeddings().weight.mul_(30)
    return model.eval()


def build_tokenizer(*, bos: bool = False) -> Any:
    """A byte-level BPE with a few merges and a chat template; every text is bytes at worst."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = []
    for word in _MERGED:
        spelled = "".join(piece for piece, _ in byte_level.pre_tokenize_str(word))
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in tokens:
                tokens.append(spelled[:end])
                merges.append((spelled[: end - 1], spelled[end - 1]))
    backend = Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = byte_level
    backend.decoder = decoders.ByteLevel()
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{_SPECIAL[0]} $A", special_tokens=[(_SPECIAL[0], 0)]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=_SPECIAL[0],
        eos_token=_SPECIAL[1],
        unk_token=_SPECIAL[2],
        pad_token=_SPECIAL[3],
        model_max_length=POSITIONS,
    )
    tokenizer.chat_template = _TEMPLATE
    assert len(tokenizer) <= VOCAB
    return tokenizer


@pytest.fixture(scope="session")
def given_data() -> Path:
    """The folder that `$TOKENDEPTH_DATA` named when the tests began; skips where it names none."""
    given = os.environ.get("TOKENDEPTH_DATA")
    if not given or not Path(given).is_dir():
        pytest.skip("no data: $TOKENDEPTH_DATA names no folder")
    return Path(given)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Any]:
    """Build a model of a family that the test may change."""
    return build_model


@pytest.fixture(scope="session")
def shared_model() -> Callable[[str], Any]:
    """A model of a family, built once; a test must leave it as it is."""
    made: dict[str, Any] = {}

    def get(family: str) -> Any:
        if family not in made:
            made[family] = build_model(family)
        return made[family]

    return get


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """Each family in turn."""
    return request.param


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The byte-level tokenizer, without a token before each text."""
    return build_tokenizer()


@pytest.fixture(scope="session")
def tokenizer_with_bos() -> Any:
    """The byte-level tokenizer that puts one control token before each text."""
    return build_tokenizer(bos=True)


@pytest.fixture(scope="session")
def llama(shared_model: Callable[[str], Any], tokenizer: Any) -> Any:
    """A tiny Llama with its tokenizer, as `load` would return it."""
    from tokendepth import Loaded

    return Loaded(title="tiny llama", model=shared_model("Llama"), tokenizer=tokenizer)


@pytest.fixture(scope="session")
def save_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Callable[..., Path]:
    """Save a model with the tokenizer, as transformers does."""

    def save(model: Any, name: str = "tiny") -> Path:
        folder = tmp_path_factory.mktemp("models") / name
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def model_folder(save_folder: Callable[..., Path], shared_model: Callable[[str], Any]) -> Path:
    """The folder of a tiny Llama; a test must leave it as it is."""
    return save_folder(shared_model("Llama"), "tiny-llama")


@pytest.fixture(scope="session")
def smollm2() -> Any:
    """The real model; where it cannot be fetched its tests are skipped, but never under CI."""
    import tokendepth

    try:
        return tokendepth.load("smollm2")
    except tokendepth.FetchError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the real model is not here: {error}")


def _pad(singles: list[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor, Any]:
    longest = max(map(len, singles))
    ids = torch.zeros(len(singles), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, single in enumerate(singles):
        at = slice(longest - len(single), longest) if side == "left" else slice(len(single))
        ids[row, at] = torch.tensor(single)
        mask[row, at] = 1
    return ids, mask, singles


@pytest.fixture(scope="session")
def pad() -> Callable[..., Any]:
    """Pad token ids with zeros on the "left" or "right": the batch, its mask, and the ids."""
    return _pad


@pytest.fixture(scope="session")
def ragged(tokenizer: Any) -> Callable[[str], Any]:
    """Three texts of different lengths, padded on one side."""
    return lambda side: _pad([tokenizer(text)["input_ids"] for text in SMALL_TEXTS], side)
