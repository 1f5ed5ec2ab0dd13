"""A run on the disk: recipe, tokenizer, where its text came from, metrics and checkpoints.

runs/NAME/
  manifest.json     versions, command, seed, data and its fingerprint
  config.json       the resolved recipe
  tokenizer/        as JSON
  metrics.jsonl     a row a step
  checkpoints/      one folder, the newest complete checkpoint
  lock              held while the run is trained
"""

import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from tokendepth import __version__
from tokendepth.configs import read
from tokendepth.files import read_json, rename, sync, without_format
from tokendepth.models.decoder import Decoder
from tokendepth.models.saved import (
    load_model,
    newest_checkpoint,
    read_model_config,
)
from tokendepth.text.corpora import Corpus, open_corpus
from tokendepth.text.tokenizers import load_tokenizer, save_tokenizer
from tokendepth.training.checkpoint import Live, remove_partial, save_checkpoint
from tokendepth.training.recipe import Recipe, read_recipe

FORMAT = 1
MANIFEST, CONFIG, TOKENIZER, LOCK = "manifest.json", "config.json", "tokenizer", "lock"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Where a run came from."""

    tokendepth: str
    torch: str
    python: str
    machine: str
    threads: int
    """Of torch: another number rounds sums otherwise, so resuming is bitwise equal only with it."""
    device: str
    command: str
    created: str
    seed: int
    data: tuple[str, ...]
    """As for `--data`; files by their whole path."""
    fingerprint: str
    """sha256 of the text and its parts."""
    parameters: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that was opened."""

    folder: Path
    manifest: Manifest
    recipe: Recipe
    tokenizer: Any

    @property
    def checkpoint(self) -> Path:
        """The newest complete checkpoint.

        Raises:
            ValueError: there is none.
        """
        found = newest_checkpoint(self.folder)
        if found is None:
            raise ValueError(f"run: {self.folder} has no checkpoint")
        return found

    @cached_property
    def decoder(self) -> Decoder:
        """The model of the newest checkpoint, in evaluation mode."""
        return load_model(self.checkpoint)

    def corpus(self, say: Callable[[str], None] = lambda _: None) -> Corpus:
        """The text it was trained on, in its parts.

        Raises:
            ValueError: the text is no longer what it was.
        """
        corpus = open_corpus(self.manifest.data, self.recipe.split, say)
        if corpus.fingerprint != self.manifest.fingerprint:
            raise ValueError(
                f"data: {corpus.name} has changed since {self.folder} was started (fingerprint "
                f"{corpus.fingerprint[:12]}, then {self.manifest.fingerprint[:12]}); bring the "
                "text back, or start another run"
            )
        return corpus


def open_run(folder: Path | str) -> Run:
    """A run that `train` has made.

    Raises:
        ValueError: no run, a newer format, an unknown field, or parts that do not fit together.
        DamagedError: a file that is cut or not what it should be.
    """
    folder = Path(folder).expanduser()
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"run: {folder} has no {MANIFEST}; name a folder that `train` has made")
    given = without_format(read_json(folder / MANIFEST, "run"), FORMAT, "run")
    recipe = read_recipe(read_json(folder / CONFIG, "run"))
    run = Run(
        folder=folder,
        manifest=read(Manifest, given, "manifest"),
        recipe=recipe,
        tokenizer=load_tokenizer(folder / TOKENIZER),
    )
    check_vocabulary(len(run.tokenizer), recipe)
    if read_model_config(run.checkpoint) != recipe.model:
        raise ValueError(
            f"run: {folder}: {CONFIG} describes another model than {run.checkpoint.name} holds; "
            "bring the config back that the run was started with"
        )
    return run


def check_vocabulary(size: int, recipe: Recipe) -> None:
    """Raise a `ValueError` when a tokenizer and a decoder do not have the same vocabulary.

    A model from elsewhere may have entries to spare.
    """
    spare = recipe.base is not None and size < recipe.decoder.vocab_size
    if size != recipe.decoder.vocab_size and not spare:
        raise ValueError(
            f"vocabulary: the tokenizer has {size} tokens, the decoder's vocab_size is "
            f"{recipe.decoder.vocab_size}; both must come from the same run"
        )


def make_run(folder: Path, manifest: Manifest, recipe: Recipe, tokenizer: Any, live: Live) -> None:
    """Write a new run with its checkpoint of step 0; it appears whole or not at all.

    Raises:
        ValueError: the folder is there already.
    """
    check_free(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        aside.chmod(0o755)
        save_tokenizer(tokenizer, aside / TOKENIZER)
        (aside / CONFIG).write_text(recipe.to_json())
        made = {"format": FORMAT, **asdict(manifest)}
        (aside / MANIFEST).write_text(json.dumps(made, indent=2) + "\n")
        for file in (aside / CONFIG, aside / MANIFEST, *(aside / TOKENIZER).iterdir()):
            sync(file)
        save_checkpoint(aside, live)
        rename(aside, folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def check_free(folder: Path) -> None:
    """Raise a `ValueError` when something is in the way of a new run."""
    if folder.exists():
        raise ValueError(
            f"out: {folder} is there already; go on with --resume {folder}, or name another --out"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a run for this process; the system lets go of it even when the process is killed.

    Raises:
        ValueError: another process trains it.
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"run: {folder} is in use: another process trains it; wait for it, or stop it"
        ) from None
    try:
        remove_partial(folder)
        yield
    finally:
        lock.release()


def manifest_of(
    recipe: Recipe, data: Sequence[str], corpus: Corpus, decoder: Decoder, command: str
) -> Manifest:
    """Where a run that is about to begin comes from."""
    return Manifest(
        tokendepth=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        machine=platform.machine(),
        threads=torch.get_num_threads(),
        device=str(decoder.embedding.weight.device),
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=recipe.seed,
        data=tuple(_whole_path(one) for one in data),
        fingerprint=corpus.fingerprint,
        parameters=sum(one.numel() for one in decoder.parameters()),
    )


def _whole_path(given: str) -> str:
    path = Path(given).expanduser()
    return str(Path.cwd() / path) if path.is_file() or set("*?[") & set(given) else given
