"""Root-mean-square norms (Zhang and Sennrich, 2019) of both ways to store their gains."""

from torch import Tensor, nn
from torch.nn import functional

from tokendepth.numerics import wide


class NormFromOne(nn.RMSNorm):
    """Gains are stored as distances from one, as Gemma does.

    They are added up in float32: added into the weights, half precision would round them away.
    """

    def reset_parameters(self) -> None:
        """Gains of one."""
        assert self.weight is not None
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The rows at unit mean square, times their gains; rounded once, at the end."""
        assert self.weight is not None
        gains = 1.0 + wide(self.weight)
        normed = functional.rms_norm(wide(x), tuple(self.normalized_shape), gains, self.eps)
        return normed.to(x.dtype)


def rms_norm(width: int, epsilon: float, *, from_one: bool) -> nn.RMSNorm:
    """A norm over `width` features; `from_one` where gains are stored as distances from one."""
    return (NormFromOne if from_one else nn.RMSNorm)(width, eps=epsilon)
