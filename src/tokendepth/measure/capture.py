"""Residual states of any view, layer by layer, without touching the model."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokendepth.adapters.recording import undisturbed
from tokendepth.adapters.view import View
from tokendepth.errors import NonFiniteError
from tokendepth.numerics import rows_finite

States = dict[int, Float[Tensor, "batch seq dim"]]


def capture(
    view: View,
    input_ids: Int[Tensor, "batch seq"],
    attention_mask: Int[Tensor, "batch seq"] | None = None,
    *,
    states: Sequence[int] | None = None,
    grad: bool = False,
    batch: int = 0,
) -> States:
    """Run the model and keep its residual states.

    State k is taken after k blocks: `resid_pre[k]`, the same tensor as `resid_post[k-1]`. Blocks
    after the last wanted state, the final norm and the unembedding are not run.

    Args:
        view: the model.
        input_ids: token ids.
        attention_mask: 1 for tokens, 0 for padding; positions follow from it, per row.
        states: which states, 0 to L; all of them by default.
        grad: keep the autograd graph, for gradients with respect to earlier states or weights.
        batch: number of this batch, for error messages.

    Returns:
        The states by index, in the model's dtype and on its device. Padded positions hold whatever
        the model computes there.

    Raises:
        ValueError: a state out of range, or a token id without a row in the embedding.
        NonFiniteError: a state is NaN or infinite at a position that is not padding.
    """
    wanted = tuple(range(view.num_layers + 1)) if states is None else tuple(states)
    for index in wanted:
        if not 0 <= index <= view.num_layers:
            raise ValueError(
                f"states: got {index}; this model has states 0 to {view.num_layers} "
                f"({view.num_layers} blocks)"
            )
    if not wanted:
        raise ValueError("states: got none; name at least one, or leave it out for all")
    with undisturbed(view.model), torch.set_grad_enabled(grad):
        found = view.states(input_ids, attention_mask, wanted)
        kept = {index: found[index] if grad else found[index].detach() for index in wanted}
    for index in sorted(kept):
        _check_finite(view, kept[index], attention_mask, index, batch)
    return kept


def _check_finite(
    view: View, states: Tensor, attention_mask: Tensor | None, index: int, batch: int
) -> None:
    good = rows_finite(states.detach())
    if attention_mask is not None:
        good = good | (attention_mask == 0)
    if bool(good.all()):
        return
    row, position = (int(value) for value in (~good).nonzero()[0])
    where, guilty = view.source_of(index)
    raise NonFiniteError(
        f"state {index}, out of {where}, is NaN or infinite: dtype {states.dtype}, batch {batch}, "
        f"row {row}, position {position}.{_weights_to_blame(guilty)}"
    )


def _weights_to_blame(guilty: nn.Module) -> str:
    """Which weights of the source are themselves not finite; for half precision, what to try."""
    bad = [name for name, weight in guilty.named_parameters() if not torch.isfinite(weight).all()]
    if bad:
        return f" Its weights are not finite: {', '.join(bad[:3])}. The checkpoint is damaged."
    if next(guilty.parameters()).dtype == torch.float16:
        return " Its weights are finite: float16 overflowed; load with dtype float32 or bfloat16."
    return " Its weights are finite; an earlier state or the input must be extreme."
