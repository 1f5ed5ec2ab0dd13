"""AdamW with weight decay by group, and a cosine learning rate after a linear warm-up.

The groups are those of published recipes: matrices decay; gains, biases and (`embeddings` spared)
tables of embeddings do not. Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Of AdamW and its learning rate."""

    learning_rate: float = 3e-4
    final_learning_rate: float = 3e-5
    """At the end of the cosine."""
    warmup_steps: int = 0
    """Over which the rate grows linearly; 0 for none."""
    decay_steps: int | None = None
    """Where the cosine ends; all steps unless given."""
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    decayed: Literal["matrices", "matrices but embeddings"] = "matrices but embeddings"
    """What weight decay acts on; never on gains and biases."""
    clip: float | None = 1.0
    """Largest norm of all gradients together; None for no clipping."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "epsilon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name)}; it must be above 0")
        for name in ("final_learning_rate", "warmup_steps", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: got {getattr(self, name)}; it must be at least 0")
        if self.final_learning_rate > self.learning_rate:
            raise ValueError(
                f"final_learning_rate: got {self.final_learning_rate}, above the learning_rate of "
                f"{self.learning_rate}; the cosine falls, so give at most that"
            )
        if self.decay_steps is not None and self.decay_steps < 1:
            raise ValueError(f"decay_steps: got {self.decay_steps}; it must be at least 1")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip: got {self.clip}; it must be above 0, or null for no clipping")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas: got {self.betas}; both lie from 0 to below 1")

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / (self.warmup_steps + 1)
        length = (self.decay_steps or steps) - self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / max(1, length))
        reach = self.learning_rate - self.final_learning_rate
        return self.final_learning_rate + reach * (1 + math.cos(math.pi * done)) / 2

    def build(self, model: nn.Module) -> torch.optim.AdamW:
        """The optimizer for all weights of a model that are trained."""
        decayed, spared = [], []
        tables = _tables(model) if self.decayed == "matrices but embeddings" else set()
        for parameter in trained(model).values():
            plain = parameter.ndim >= 2 and id(parameter) not in tables
            (decayed if plain else spared).append(parameter)
        groups = [
            {"params": decayed, "weight_decay": self.weight_decay},
            {"params": spared, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=self.learning_rate,
            betas=self.betas,
            eps=self.epsilon,
        )


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Weights with a gradient, shared ones once."""
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """For all groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clipped(model: nn.Module, limit: float | None) -> Tensor:
    """Scale gradients down to the limit; returns their norm before, in the graph of nothing."""
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if limit is not None:
        nn.utils.clip_grads_with_norm_(trained(model).values(), limit, norm)
    return norm


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's memory of each weight, as `weight/entry`."""
    return {
        f"{name}/{entry}": torch.as_tensor(value)
        for name, parameter in trained(model).items()
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, stored: dict[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` has given.

    Raises:
        ValueError: memory of weights that the model lacks, or of another shape.
    """
    mine = trained(model)
    for key, value in stored.items():
        name, _, entry = key.rpartition("/")
        wanted = () if entry == "step" else mine[name].shape if name in mine else None
        if value.shape != wanted:
            raise ValueError(
                f"optimizer: the checkpoint has {key} of shape {tuple(value.shape)}, which this "
                "model has no weight for"
            )
        optimizer.state[mine[name]][entry] = value if not value.ndim else value.to(mine[name])


def _tables(model: nn.Module) -> set[int]:
    return {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
