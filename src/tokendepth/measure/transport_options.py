"""Options of the transport measurement, apart from what needs compiled code."""

from dataclasses import dataclass

from tokendepth.measure.camera import CAMERAS, CameraKind
from tokendepth.measure.clouds import KINDS, Kind


@dataclass(frozen=True, kw_only=True)
class TransportOptions:
    """What to measure and how."""

    points: Kind = "mean_flow"
    """mean_flow: one point a token type, averaged over its occurrences; raw: one an occurrence."""
    camera: CameraKind = "balanced"
    """balanced: one set of principal directions, each layer with the same weight; unscaled: large
    layers count for more; per_transition; full: no projection."""
    directions: int = 16
    """Principal directions that the camera keeps."""
    n: int | None = None
    """Points a sample; 4,000, or a third of the points where there are fewer than 12,000."""
    seeds: int = 3
    """Repetitions with other samples, whose range is told."""
    blocks: tuple[str, ...] = ()
    """Pairs of layers to measure directly besides neighbours, such as 3-9."""
    window: int = 1024
    """Tokens a window, at most; the first of each is left out."""
    sliced: int = 2000
    """Random directions of the bound from below."""
    batch: int = 1
    """Windows in one forward pass; more take more memory."""
    limit: int | None = None
    """Read at most so many tokens of each document."""
    final_norm: bool = False
    """Also measure the last transition with the final norm applied to its end."""
    memory_gb: float = 1.0
    """For the states of all points; more token types than fit are drawn from at random."""

    def check(self) -> None:
        """Raise a `ValueError` that names the first option out of its range."""
        for name, allowed in (("points", KINDS), ("camera", CAMERAS)):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}: got {getattr(self, name)!r}; allowed are {', '.join(allowed)}"
                )
        least = {"directions": 1, "n": 2, "seeds": 1, "window": 2, "sliced": 1, "batch": 1}
        for name, low in {**least, "limit": 2}.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"{name}: got {value}; it must be at least {low}")
        if not self.memory_gb > 0.0:
            raise ValueError(f"memory_gb: got {self.memory_gb}; it must be above 0")

    def pairs(self, num_layers: int) -> list[tuple[int, int]]:
        """Neighbouring layers, then the named blocks.

        With `final_norm` there is a layer more, num_layers + 1: the last one after the norm.
        """
        found = [(layer, layer + 1) for layer in range(num_layers)]
        if self.final_norm:
            found.append((num_layers - 1, num_layers + 1))
        for block in self.blocks:
            source, _, target = block.partition("-")
            if not (source.isdigit() and target.isdigit()):
                raise ValueError(f"blocks: got {block!r}; write two layers, such as 3-9")
            if not int(source) < int(target) <= num_layers:
                raise ValueError(
                    f"blocks: got {block!r}; layers go from 0 to {num_layers}, lower first"
                )
            found.append((int(source), int(target)))
        return found
