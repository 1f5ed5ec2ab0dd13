"""A recipe of a second, a policy and an objective of one's own that draw from every generator."""

from dataclasses import dataclass

import torch

from tests.contract.toys import UpdateGate
from tokendepth import DecoderConfig, stack
from tokendepth.training.objective import Losses, cross_entropy, weighted_penalties
from tokendepth.training.optimise import OptimizerConfig
from tokendepth.training.recipe import Recipe
from tokendepth.types import Schedule

TEXT = "".join(
    f"{number} is not {number + 1}; the question is {number % 7}?\n" for number in range(60)
)


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    shift: float = 0.0

    def build(self, host):
        return UpdateGate(host.config.width, self.shift)


@dataclass(frozen=True, kw_only=True)
class Noisy:
    """A random depth a step, noise from the stream and from torch's own, a warm-up, a penalty."""

    penalty: float

    def __call__(self, decoder, batch, state):
        depth = int(torch.randint(1, 3, (1,), generator=state.shared()))
        short = Schedule(spans=decoder.schedule.spans[: depth + 1])
        output = decoder(batch.inputs, batch.mask, schedule=short, row_keys=batch.row_keys)
        noise = (
            1 + 0.1 * torch.rand(1, generator=state.generator).item() + 0.1 * torch.rand(1).item()
        )
        sums = {"cross_entropy": noise * cross_entropy(output.logits, batch)}
        weights = {"depth": self.penalty * state.progress}
        return Losses(sums=sums | weighted_penalties(output, batch, weights))


def tiny(**changes) -> Recipe:
    """Three blocks of width 16 with dropout; a step takes milliseconds."""
    decoder = DecoderConfig(
        vocab_size=1, width=16, num_blocks=3, num_heads=2, num_key_value_heads=1, head_dim=8,
        inner_width=32, dropout=0.1,
    )  # fmt: skip
    given = {
        "recipe": "tiny", "decoder": decoder, "schedule": stack(3), "window": 16, "batch": 4,
        "steps": 10, "checkpoint_every": 5, "evaluate_every": 0, "evaluate_tokens": 100,
        "optimizer": OptimizerConfig(learning_rate=1e-2, final_learning_rate=1e-3, warmup_steps=3),
    }  # fmt: skip
    return Recipe(**(given | changes))


def noisy(**changes) -> Recipe:
    """The same with everything that draws."""
    given = {"recipe": "noisy", "policy": GateConfig(shift=-0.5), "objective": Noisy(penalty=0.1)}
    return tiny(**(given | changes))
