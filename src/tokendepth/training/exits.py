"""The losses of early exits: every exit learns from every token, as if it were the last."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tokendepth.depth.dense import Dense
from tokendepth.depth.early_exit import EarlyExit
from tokendepth.models.decoder import Decoder
from tokendepth.training.objective import Batch, Losses, TrainState, cross_entropy
from tokendepth.types import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitLosses:
    """Weighted mean of the cross-entropies of all exits, the model's own read-out among them.

    Nothing is skipped while training. Losses are told as `exit_D`, D blocks having run.
    """

    weights: tuple[float, ...] = ()
    """Of the exits from the first to the last; uniform unless given. They are divided by their
    sum."""

    def __post_init__(self) -> None:
        if any(not one >= 0.0 for one in self.weights) or (self.weights and not sum(self.weights)):
            raise ValueError(f"weights: got {self.weights}; at least 0, and not all of them 0")

    def __call__(self, decoder: Decoder, batch: Batch, state: TrainState) -> Losses:
        """The losses.

        Raises:
            ValueError: a policy without exits, another number of weights, or exits behind a coda.
        """
        del state
        policy = decoder.policy
        if not isinstance(policy, EarlyExit):
            raise ValueError(
                f"objective: exit_losses needs the policy early_exit, not {type(policy).__name__}"
            )
        _check_schedule(decoder.schedule)
        output = decoder(
            batch.inputs,
            batch.mask,
            policy=Dense(),
            collect=policy.depths,
            row_keys=batch.row_keys,
        )
        losses = {
            depth: cross_entropy(_logits(policy, output.states[depth], depth), batch)
            for depth in policy.depths
        }
        losses[len(decoder.schedule.visits)] = cross_entropy(output.logits, batch)
        weights = self.weights or (1.0,) * len(losses)
        if len(weights) != len(losses):
            raise ValueError(f"weights: got {len(weights)}; the model has {len(losses)} exits")
        return Losses(
            sums={
                f"exit_{depth}": weight / sum(weights) * loss
                for weight, (depth, loss) in zip(weights, losses.items(), strict=True)
            },
            statistics={"cross_entropy": losses[len(decoder.schedule.visits)].detach()},
        )


def _logits(
    policy: EarlyExit, states: Float[Tensor, "batch seq dim"], depth: int
) -> Float[Tensor, "batch seq vocab"]:
    assert policy.read_out is not None
    rows = states.flatten(0, 1)
    depths = torch.full((len(rows),), depth, device=rows.device)
    return policy.read_out(rows, depths).unflatten(0, states.shape[:2])


def _check_schedule(schedule: Schedule) -> None:
    if schedule.coda:
        raise ValueError(
            "schedule: exit_losses reads the states between blocks, and this schedule ends with "
            "unrouted spans that an exit would have to run; make the last span routed"
        )
