"""Train a recipe on a text, or go on with a run: everything around the loop."""

import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from tokendepth.adapters.load import Loaded, load
from tokendepth.evaluation.loss import score
from tokendepth.evaluation.passages import passages
from tokendepth.numerics import derived_seed, resolve_device
from tokendepth.text.corpora import Corpus, open_corpus
from tokendepth.text.documents import Document
from tokendepth.text.tokenizers import encode_text, make_tokenizer
from tokendepth.training.base import freeze, on_base
from tokendepth.training.checkpoint import Live, Position, restore, save_checkpoint
from tokendepth.training.data import Windows
from tokendepth.training.loop import Hooks, Step, Training, fit
from tokendepth.training.recipe import Recipe, with_vocabulary
from tokendepth.training.result import Trained
from tokendepth.training.run import (
    Run,
    check_free,
    check_vocabulary,
    locked,
    make_run,
    manifest_of,
    open_run,
)
from tokendepth.training.track import Tracker, read_metrics
from tokendepth.types import OnProgress


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What does not change what is learned."""

    tensorboard: bool = False
    """Write events for tensorboard into the run; needs the track extra."""
    say: Callable[[str], None] = lambda message: None
    """Told in words what happens."""
    on_progress: OnProgress = lambda done, total: None
    """Told (tokens done, tokens in all) after each step."""
    should_stop: Callable[[], bool] = lambda: False
    """Asked between steps; the run is then saved and left."""


def train(
    recipe: Recipe,
    data: str | Sequence[str],
    out: Path | str | None = None,
    *,
    device: str | None = None,
    options: TrainOptions | None = None,
    base: Loaded | None = None,
) -> Trained:
    """Train a recipe on a text.

    Args:
        recipe: what to train; a function of `tokendepth.recipes` makes one.
        data: a named corpus, or files and patterns; see `tokendepth list`.
        out: the run's folder, which must not be there; `runs/RECIPE-seedN` by default.
        device: the CPU unless named.
        options: what does not change what is learned.
        base: the model that the recipe names as its base, where it is loaded already.

    Raises:
        ValueError: a folder that is there, a text that is too short, a recipe that does not fit.
        NonFiniteError: a loss is NaN or infinite; the last checkpoint is unchanged.
        OSError: a checkpoint could not be written; the one before is unchanged.
    """
    options = options or TrainOptions()
    data = [data] if isinstance(data, str) else list(data)
    folder = Path(out or Path("runs") / f"{recipe.recipe}-seed{recipe.seed}").expanduser()
    check_free(folder)
    on_device = resolve_device(device)
    corpus = open_corpus(data, recipe.split, options.say)
    if recipe.base is None:
        tokenizer = make_tokenizer(recipe.tokenizer, corpus.part("all"))
        recipe = with_vocabulary(recipe, len(tokenizer))
    else:
        base = base or load(recipe.base, say=options.say)
        tokenizer = base.tokenizer
        check_vocabulary(len(tokenizer), recipe)
    texts = _Texts.of(corpus, tokenizer, recipe)
    with torch.random.fork_rng(enabled=True):
        live = _live(recipe, on_device, base)
        torch.manual_seed(derived_seed(recipe.seed, "dropout"))
        manifest = manifest_of(recipe, data, corpus, live.decoder, shlex.join(sys.argv))
        make_run(folder, manifest, recipe, tokenizer, live)
        options.say(f"training {recipe.recipe} on {corpus.name} in {folder}")
        with locked(folder):
            return _fit(open_run(folder), texts, live, options)


def resume(
    run: Path | str, *, device: str | None = None, options: TrainOptions | None = None
) -> Trained:
    """Go on with a run from its newest checkpoint, as if it had never been stopped.

    Args:
        run: the folder.
        device: where it ran before, unless named.
        options: what does not change what is learned.

    Raises:
        ValueError: no run, a run in use, one of a newer version, or a text that has changed.
        DamagedError: a file that is cut or not what it should be.
    """
    options = options or TrainOptions()
    folder = Path(run).expanduser()
    open_run(folder)  # says what is wrong with a folder before a lock is put into it
    with locked(folder), torch.random.fork_rng(enabled=True):
        opened = open_run(folder)
        texts = _Texts.of(opened.corpus(options.say), opened.tokenizer, opened.recipe)
        live = _live(opened.recipe, resolve_device(device or opened.manifest.device))
        restore(opened.checkpoint, live)
        options.say(f"going on with {folder} after step {live.position.step}")
        for change in _changed_since(opened, live.decoder.embedding.weight.device):
            options.say(
                f"{change}: the numbers will differ in their last digits from an unbroken run"
            )
        return _fit(opened, texts, live, options)


def _changed_since(run: Run, device: torch.device) -> Iterator[str]:
    """What rounds sums otherwise than where the run began."""
    made = run.manifest
    if made.threads != torch.get_num_threads():
        yield (
            f"it began on {made.threads} threads and goes on with {torch.get_num_threads()} "
            f"(OMP_NUM_THREADS={made.threads} gives as many)"
        )
    if made.torch != torch.__version__:
        yield f"it began with torch {made.torch} and goes on with {torch.__version__}"
    if made.device != str(device):
        yield f"it began on {made.device} and goes on with {device}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Texts:
    """The text as the loop and its validation read it."""

    windows: Windows
    validation: Document

    @staticmethod
    def of(corpus: Corpus, tokenizer: object, recipe: Recipe) -> "_Texts":
        """Tokens of both parts.

        Raises:
            ValueError: a part that is too short.
        """
        windows = Windows(
            encode_text(tokenizer, corpus.train),
            recipe.window,
            recipe.batch,
            recipe.order,
            recipe.seed,
            recipe.skip,
        )
        ids = encode_text(tokenizer, corpus.validation)
        if recipe.evaluate_tokens is not None:
            ids = ids[: recipe.evaluate_tokens + 1]
        if len(ids) < 2:
            raise ValueError(
                f"data: the validation part has {len(ids)} tokens, and 2 are the least; take a "
                "longer text, or another split"
            )
        document = Document(
            name="validation", ids=tuple(ids.tolist()), is_special=(False,) * len(ids)
        )
        return _Texts(windows=windows, validation=document)


def _live(recipe: Recipe, device: torch.device, base: Loaded | None = None) -> Live:
    """What training begins with; weights of a base that a checkpoint will bring may be left out."""
    made = (
        recipe.initial.build(recipe.model, recipe.seed) if base is None else on_base(recipe, base)
    )
    decoder = made.to(device)
    if recipe.base is not None:
        freeze(decoder)
    return Live(
        config=recipe.model,
        decoder=decoder,
        optimizer=recipe.optimizer.build(decoder),
        generator=torch.Generator().manual_seed(derived_seed(recipe.seed, "draws")),
        position=Position(),
    )


def _fit(run: Run, texts: _Texts, live: Live, options: TrainOptions) -> Trained:
    recipe = run.recipe
    steps: list[tuple[int, float]] = []
    per_step = recipe.batch * recipe.accumulate * recipe.window
    with Tracker(run.folder, live.position.step, tensorboard=options.tensorboard) as tracker:

        def on_step(step: Step) -> None:
            steps.append((step.tokens, step.seconds))
            row = {"gradient_norm": step.gradient_norm, "learning_rate": step.learning_rate}
            tracker.add(step.number, {**step.losses, **row, "seconds": step.seconds})
            options.on_progress(live.position.tokens, recipe.steps * per_step)

        def evaluate() -> None:
            tracker.add(live.position.step, _validation(live, texts.validation, recipe))
            tracker.flush()

        def checkpoint() -> None:
            tracker.flush()
            save_checkpoint(run.folder, live)

        hooks = Hooks(
            on_step=on_step,
            checkpoint=checkpoint,
            evaluate=evaluate,
            should_stop=options.should_stop,
        )
        finished = fit(Training(recipe=recipe, windows=texts.windows, live=live, hooks=hooks))
    return _trained(run, live, finished, steps)


def _validation(live: Live, document: Document, recipe: Recipe) -> dict[str, float]:
    """Loss and executed share under each routing, on a full fixed pass."""
    live.decoder.eval()
    given = list(passages([document], recipe.window, skip=recipe.skip))
    told: dict[str, float] = {}
    routings = sorted(live.decoder.policy.routings, key=lambda name: name != "hard")
    for number, routing in enumerate(routings):
        scores = score(live.decoder, given, routing=routing, batch=recipe.evaluate_batch)
        end = "" if number == 0 else f"_{routing}"
        told[f"validation_loss{end}"] = float(np.mean(scores.nats))
        told[f"validation_executed_share{end}"] = scores.cost.executed_share
        if recipe.skip:
            told[f"validation_accuracy{end}"] = float(np.mean(scores.correct))
    return told


def _trained(run: Run, live: Live, finished: bool, steps: Sequence[tuple[int, float]]) -> Trained:
    rows = read_metrics(run.folder)
    passes = [row for row in rows if "validation_loss" in row]
    validation = {
        name: value
        for name, value in (passes[-1] if passes else {}).items()
        if name.startswith("validation_")
    }
    losses = [row["loss"] for row in rows if "loss" in row]
    seconds = sum(one for _, one in steps)
    last = losses[-1] if losses else None
    return Trained(
        run=run.folder,
        recipe=run.recipe.recipe,
        steps=live.position.step,
        finished=finished,
        loss=validation.get("validation_loss", last),
        validation=validation,
        tokens_per_second=sum(tokens for tokens, _ in steps) / seconds if seconds else 0.0,
        rows=tuple(rows),
        measured={"recipe": run.recipe.recipe, "data": list(run.manifest.data)},
    )
