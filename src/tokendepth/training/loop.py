"""The loop: batches to losses to weights, with what is due at some steps done between them."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tokendepth.errors import NonFiniteError
from tokendepth.training.checkpoint import Live, Position
from tokendepth.training.data import Windows
from tokendepth.training.objective import Batch, TrainState
from tokendepth.training.optimise import clipped, set_rate
from tokendepth.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one step did."""

    number: int
    """Steps done, this one included."""
    tokens: int
    """Of this step."""
    losses: Mapping[str, float]
    """`loss`, then its parts and the statistics of the objective; each a mean over tokens."""
    gradient_norm: float
    learning_rate: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What is told, and what is done between steps."""

    on_step: Callable[[Step], None] = lambda step: None
    checkpoint: Callable[[], None] = lambda: None
    evaluate: Callable[[], None] = lambda: None
    should_stop: Callable[[], bool] = lambda: False
    """Asked between steps; the run is then saved and left."""


@dataclass(kw_only=True)
class Training:
    """A run in memory."""

    recipe: Recipe
    windows: Windows
    live: Live
    hooks: Hooks = field(default_factory=Hooks)

    @property
    def done(self) -> bool:
        """True when all steps are."""
        return self.live.position.step >= self.recipe.steps


def fit(training: Training) -> bool:
    """Train to the last step of the recipe. Returns False if stopped before.

    Raises:
        NonFiniteError: a loss or gradient is NaN or infinite; nothing was changed by that step.
    """
    recipe, hooks = training.recipe, training.hooks
    while not training.done:
        if hooks.should_stop():
            hooks.checkpoint()
            return False
        step = one_step(training)
        hooks.on_step(step)
        last = training.done
        if last or (recipe.evaluate_every and step.number % recipe.evaluate_every == 0):
            hooks.evaluate()
        if last or step.number % recipe.checkpoint_every == 0:
            hooks.checkpoint()
    return True


def one_step(training: Training) -> Step:
    """One optimizer step over all its micro-batches.

    Raises:
        NonFiniteError: a loss or the gradient is not finite; the weights are as before.
    """
    recipe, live = training.recipe, training.live
    began, position = time.perf_counter(), live.position
    numbers = range(position.batches, position.batches + recipe.accumulate)
    device = live.decoder.embedding.weight.device
    batches = [training.windows.get(number) for number in numbers]
    tokens = sum(int(batch.valid.sum()) for batch in batches)
    live.decoder.train()
    rate = recipe.optimizer.rate(position.step, recipe.steps)
    set_rate(live.optimizer, rate)
    totals: dict[str, Tensor] = {}
    for micro, batch in enumerate(batches):
        parts = _backward(training, batch.to(device), micro, tokens)
        for name, value in parts.items():
            totals[name] = totals[name] + value if name in totals else value
    norm = float(clipped(live.decoder, recipe.optimizer.clip))
    if not math.isfinite(norm):
        live.optimizer.zero_grad()
        raise NonFiniteError(
            f"step {position.step + 1}: the gradient is not finite; the last checkpoint is "
            "unchanged. Lower the learning rate, or clip."
        )
    live.optimizer.step()
    live.optimizer.zero_grad()
    live.position = Position(
        step=position.step + 1, batches=numbers.stop, tokens=position.tokens + tokens
    )
    return Step(
        number=live.position.step,
        tokens=tokens,
        losses={name: float(value) for name, value in totals.items()},
        gradient_norm=norm,
        learning_rate=rate,
        seconds=time.perf_counter() - began,
    )


def _backward(training: Training, batch: Batch, micro: int, tokens: int) -> dict[str, Tensor]:
    """Gradients of one micro-batch; its losses and statistics over the tokens of the step."""
    recipe, live = training.recipe, training.live
    state = TrainState(
        step=live.position.step,
        steps=recipe.steps,
        micro=micro,
        tokens=tokens,
        seed=recipe.seed,
        generator=live.generator,
    )
    half = recipe.precision == "bfloat16"
    with torch.autocast(batch.inputs.device.type, dtype=torch.bfloat16, enabled=half):
        losses = recipe.objective(live.decoder, batch, state)
    loss = torch.stack([value.float() for value in losses.sums.values()]).sum() / tokens
    if not bool(torch.isfinite(loss.detach())):
        live.optimizer.zero_grad()
        number = live.position.batches + micro
        raise NonFiniteError(
            f"step {state.step + 1}, batch {number} (windows at tokens "
            f"{', '.join(map(str, training.windows.starts(number)[:4]))} …): the loss is "
            f"{loss.item()} ({', '.join(losses.sums)}); the last checkpoint is unchanged. Lower "
            "the learning rate, or train in float32."
        )
    loss.backward()
    told = {**losses.sums, **losses.statistics}
    return {"loss": loss.detach(), **{name: one.detach() / tokens for name, one in told.items()}}
