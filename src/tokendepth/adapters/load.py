"""Load a model by name, folder or hub name, with its tokenizer and its view."""

import copy
import difflib
import hashlib
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tokendepth import __version__
from tokendepth.adapters.decoder import DecoderView
from tokendepth.adapters.huggingface import Parts, find_view
from tokendepth.adapters.view import View
from tokendepth.errors import FetchError
from tokendepth.files import read_json
from tokendepth.models.convert import from_transformers
from tokendepth.models.decoder import Decoder
from tokendepth.models.named import NAMED_MODELS, Say, named_folder
from tokendepth.models.saved import MODEL_FILE, load_model, newest_checkpoint
from tokendepth.numerics import resolve_device, resolve_dtype
from tokendepth.text.tokenizers import load_tokenizer
from tokendepth.types import Schedule


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model in evaluation mode, its tokenizer, and what the measures see of it."""

    title: str
    """What results call the model."""
    model: nn.Module
    tokenizer: Any
    parts: Parts = field(default_factory=Parts)
    window: int | None = None
    """Tokens that a run was trained to read at once; None for models from elsewhere."""
    skip: int = 0
    """Targets at the beginning of each window that a run was not taught."""

    @cached_property
    def view(self) -> View:
        """Blocks, final norm and unembedding, found by structure when first asked for."""
        if isinstance(self.model, Decoder):
            return DecoderView(model=self.model)
        return find_view(self.model, self.parts)

    @cached_property
    def decoder(self) -> Decoder:
        """Our decoder with the same weights, copied when first asked for.

        Raises:
            ValueError: a family that has no decoder here; the message lists the known ones.
        """
        return self.model if isinstance(self.model, Decoder) else from_transformers(self.model)

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a text, by the model's own settings and its tokenizer."""
        settings = getattr(self.model, "generation_config", None)
        given = getattr(settings, "eos_token_id", None)
        ids = list(given) if isinstance(given, list | tuple) else [given]
        ids.append(getattr(self.tokenizer, "eos_token_id", None))
        return frozenset(one for one in ids if one is not None)

    def on_decoder(self, schedule: Schedule | None = None) -> "Loaded":
        """The same weights and tokenizer on our decoder, for measures of its own spans and loops.

        Args:
            schedule: in which order blocks run; a plain stack by default.
        """
        decoder = self.decoder
        if schedule is not None:
            decoder = copy.copy(decoder)
            decoder.schedule = schedule
        visits = len(decoder.schedule.visits)
        return replace(self, model=decoder, title=f"{self.title}, own decoder, {visits} visits")

    def facts(self) -> dict[str, Any]:
        """What a result says of how it was measured: versions, weights, dtype and device."""
        import transformers

        weight = next(self.model.parameters())
        return {
            "tokendepth": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "weights_sha256": self.weights_hash,
            "dtype": str(weight.dtype).removeprefix("torch."),
            "device": str(weight.device),
        }

    @cached_property
    def weights_hash(self) -> str:
        """A digest of names, dtypes and values of all weights, independent of the file layout."""
        return hash_weights(self.model)


def load(
    name_or_folder: str | Path,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    *,
    parts: Parts | None = None,
    say: Say = lambda message: None,
) -> Loaded:
    """Load a causal language model.

    Args:
        name_or_folder: a run or a saved model of ours, a name of `tokendepth list`, a local folder
            in the layout of transformers, or a hub name such as `openai-community/gpt2`.
        dtype: float32 unless named; "auto" takes what a short measurement finds faster.
        device: the CPU unless named.
        parts: where blocks, final norm or unembedding lie, if structure does not tell.
        say: told in words what is being done on a first use that takes long.

    Raises:
        ValueError: an unknown name, a folder without a config, an unknown dtype, an absent device.
        FetchError: a file could not be fetched or kept.
    """
    on_device = resolve_device(device)
    in_dtype = resolve_dtype(dtype, on_device)
    name = str(name_or_folder)
    if name in NAMED_MODELS and not Path(name).is_dir():
        title, source = NAMED_MODELS[name].title, str(named_folder(name, say))
    else:
        title, source = _title(name), _folder_or_hub_name(name)
    if Path(source).is_dir() and (saved := _saved(Path(source))) is not None:
        model, tokenizer = load_model(saved).to(in_dtype), _tokenizer_of(Path(source))
    else:
        model, tokenizer = _from_transformers(source, in_dtype)
    return Loaded(
        title=title,
        model=model.to(on_device).eval(),
        tokenizer=tokenizer,
        parts=parts or Parts(),
        **_reading(Path(source)),
    )


def hash_weights(model: nn.Module) -> str:
    """sha256 over names, dtypes, shapes and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        raw = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
        digest.update(memoryview(raw.numpy()))
    return digest.hexdigest()


def _saved(folder: Path) -> Path | None:
    """Where a folder of ours keeps its model: a run in its newest checkpoint."""
    return folder if (folder / MODEL_FILE).is_file() else newest_checkpoint(folder)


def _reading(folder: Path) -> dict[str, int]:
    """How a run reads its text, as its recipe says."""
    if not (folder / "manifest.json").is_file():
        return {}
    recipe = read_json(folder / "config.json", "run")
    return {name: recipe[name] for name in ("window", "skip") if name in recipe}


def _tokenizer_of(folder: Path) -> Any:
    """The tokenizer in a folder of ours; None where none was saved with the model."""
    return load_tokenizer(folder / "tokenizer") if (folder / "tokenizer").is_dir() else None


def _title(name: str) -> str:
    return Path(name).expanduser().resolve().name if Path(name).expanduser().is_dir() else name


def _folder_or_hub_name(name: str) -> str:
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file() and _saved(folder) is None:
            raise ValueError(
                f"model: the folder {folder} has no config.json; a model folder is what "
                "transformers' save_pretrained writes (config.json, weights, tokenizer)"
            )
        return str(folder)
    known = ", ".join(NAMED_MODELS)
    if name.count("/") != 1 or name.startswith(("/", "./", "../", "~")):
        close = difflib.get_close_matches(name, NAMED_MODELS, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise ValueError(
            f"model: got {name!r}, which is neither a known name ({known}) nor a folder here.{hint}"
            " A model on the hub is named with its owner, such as openai-community/gpt2."
        )
    return name


def _from_transformers(source: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """The model and tokenizer at a folder or hub name, with errors sorted into ours."""
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, output_loading_info=True
        )
        model, loading = loaded
    except SafetensorError as error:
        raise FetchError(
            f"model: the weights of {source!r} are damaged: {error}. Remove them and fetch or save "
            "them again."
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        causes = _causes(error)
        if _any(causes, RepositoryNotFoundError, HFValidationError):
            raise ValueError(f"model: {source!r} is not on the hub: {error}") from error
        if _any(causes, OfflineModeIsEnabled) or (
            os.environ.get("HF_HUB_OFFLINE") == "1" and not Path(source).is_dir()
        ):
            raise ValueError(
                f"model: {source!r} is neither a folder here nor in the local hub cache, and "
                "HF_HUB_OFFLINE is set. Unset it to fetch the model, or name a folder."
            ) from error
        if _any(causes, LocalEntryNotFoundError, HfHubHTTPError, ConnectionError):
            raise FetchError(
                f"model: {source!r} could not be fetched from the hub: {error}\nWays out: connect "
                "to the network; or fetch it elsewhere and name its folder."
            ) from error
        raise ValueError(f"model: {source!r} could not be loaded: {error}") from error
    lacking = sorted({*loading["missing_keys"], *map(str, loading["mismatched_keys"])})
    if lacking:
        raise FetchError(
            f"model: the weights of {source!r} are incomplete: {len(lacking)} are missing or of "
            f"another shape, such as {', '.join(lacking[:3])}. Fetch or save them again."
        )
    return model, tokenizer


def _causes(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    return chain


def _any(chain: list[BaseException], *kinds: type[BaseException]) -> bool:
    return any(isinstance(error, kinds) for error in chain)
