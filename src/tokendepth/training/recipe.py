"""A recipe: everything that makes a run but its text. Resolved, it lies in the run as JSON."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tokendepth.configs import Families, read, write
from tokendepth.depth.base import PolicyConfig
from tokendepth.depth.dense import DenseConfig
from tokendepth.depth.registry import POLICIES
from tokendepth.models.config import DecoderConfig
from tokendepth.models.saved import ModelConfig
from tokendepth.text.corpora import Split
from tokendepth.training.data import Order
from tokendepth.training.initial import Initial
from tokendepth.training.objective import CrossEntropy, Objective
from tokendepth.training.optimise import OptimizerConfig
from tokendepth.training.registry import OBJECTIVES
from tokendepth.types import Schedule

FAMILIES: Families = {PolicyConfig: POLICIES, Objective: OBJECTIVES}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A full configuration; a recipe function returns one, options replace fields of it."""

    recipe: str
    """Its name; runs that differ in their seed alone are compared as one."""
    decoder: DecoderConfig
    """Its vocabulary becomes the tokenizer's."""
    schedule: Schedule
    policy: PolicyConfig = field(default_factory=DenseConfig)
    objective: Objective = field(default_factory=CrossEntropy)
    base: str | None = None
    """A model, as `load` names it, whose weights the decoder begins with and keeps: the policy's
    alone are trained. None to train all weights from `initial`."""
    initial: Initial = field(default_factory=Initial)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    tokenizer: str = "characters"
    """characters, bytes, or a folder or hub name of a tokenizer of transformers; with a base it is
    the base's, whatever stands here."""
    split: Split = field(default_factory=Split)
    """Of texts that do not come in parts."""
    window: int
    """Tokens that the model reads at once."""
    order: Order = "shuffled"
    """Windows that tile the text, or begin anywhere in it."""
    skip: int = 0
    """Targets at the beginning of each window that are not learned: the question of a task."""
    batch: int
    """Windows in a micro-batch."""
    accumulate: int = 1
    """Micro-batches in a step."""
    steps: int
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: products under autocast; weights, gates and losses stay float32."""
    checkpoint_every: int = 250
    """Steps; a kill loses at most so many."""
    evaluate_every: int = 250
    """Steps; 0 for the end alone."""
    evaluate_tokens: int | None = None
    """Only so many tokens of the validation text, from its beginning; all of it unless given."""
    evaluate_batch: int = 64
    """Passages in a forward pass of the evaluation; changes nothing but speed and memory."""
    seed: int = 0
    """Of weights, data order, dropout and draws."""
    changes: tuple[str, ...] = ()
    """What options have replaced in the recipe of that name, the seed apart."""

    def __post_init__(self) -> None:
        least = {"window": 1, "batch": 1, "accumulate": 1, "steps": 1, "checkpoint_every": 1}
        least |= {"evaluate_every": 0, "skip": 0, "evaluate_batch": 1, "seed": 0}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ValueError(
                    f"{name}: got {getattr(self, name)}; it must be at least {smallest}"
                )
        if self.evaluate_tokens is not None and self.evaluate_tokens < 1:
            raise ValueError(f"evaluate_tokens: got {self.evaluate_tokens}; it must be at least 1")
        if self.skip >= self.window:
            raise ValueError(
                f"skip: got {self.skip}; a window of {self.window} tokens must keep a target"
            )
        limit = self.decoder.max_positions
        if limit is not None and self.window > limit:
            raise ValueError(
                f"window: got {self.window}; the decoder has {limit} positions (max_positions)"
            )

    @property
    def model(self) -> ModelConfig:
        """What the run saves with its weights."""
        return ModelConfig(decoder=self.decoder, schedule=self.schedule, policy=self.policy)

    def to_json(self) -> str:
        """All fields."""
        return json.dumps(write(self, FAMILIES), indent=2) + "\n"


def read_recipe(given: Mapping[str, Any]) -> Recipe:
    """A recipe from what JSON holds.

    Raises:
        ValueError: an unknown or missing field, or a value out of its range, by name.
    """
    return read(Recipe, given, "config", FAMILIES)


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """A recipe with fields replaced, each by its path, such as `optimizer.learning_rate`.

    Raises:
        ValueError: an unknown field, naming the nearest, or a value of another type.
    """
    given: dict[str, Any] = write(recipe, FAMILIES)
    told = list(recipe.changes)
    for path, value in changes.items():
        _set(given, path.split("."), value, path)
        if path != "seed":
            told.append(f"{path}={json.dumps(value)}")
    given["changes"] = sorted(set(told))
    return read_recipe(given)


def parse_changes(assignments: Sequence[str]) -> dict[str, Any]:
    """`path=value` as a mapping; a value is JSON, or else text.

    Raises:
        ValueError: no equals sign.
    """
    made: dict[str, Any] = {}
    for one in assignments:
        path, sign, value = one.partition("=")
        if not sign:
            raise ValueError(f"set: got {one!r}; write field=value, such as decoder.dropout=0.2")
        try:
            made[path.strip().replace("-", "_")] = json.loads(value)
        except json.JSONDecodeError:
            made[path.strip().replace("-", "_")] = value
    return made


def _set(given: dict[str, Any], path: list[str], value: Any, whole: str) -> None:
    *folders, last = path
    at: Any = given
    for name in folders:
        if not isinstance(at, dict) or not isinstance(at.get(name), dict):
            raise ValueError(f"{whole}: {name!r} holds no fields; known are {', '.join(given)}")
        at = at[name]
    at[last] = value


def with_vocabulary(recipe: Recipe, size: int) -> Recipe:
    """The recipe for a tokenizer of so many tokens."""
    return dataclasses.replace(recipe, decoder=dataclasses.replace(recipe.decoder, vocab_size=size))
