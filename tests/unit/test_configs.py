"""Frozen dataclasses to JSON and back, strictly."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import pytest

from tokendepth.configs import Family, imported, nearest, read, short_name, write


@runtime_checkable
class Shape(Protocol):
    def area(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class RoundShapeConfig:
    radius: float = 1.0

    def area(self) -> float:
        return 3 * self.radius**2


@dataclass(frozen=True, kw_only=True)
class ForeignConfig:
    side: int

    def area(self) -> float:
        return self.side**2


@dataclass(frozen=True, kw_only=True)
class Inner:
    word: Literal["one", "two"] = "one"
    maybe: int | None = None


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: int
    share: float
    switch: bool = False
    inner: Inner = field(default_factory=Inner)
    several: tuple[Inner, ...] = ()
    pair: tuple[float, float] = (0.0, 1.0)
    weights: Mapping[str, float] = field(default_factory=dict)
    shape: Shape = field(default_factory=RoundShapeConfig)


SHAPES = Family(what="shape", members=(RoundShapeConfig,))
FAMILIES = {Shape: SHAPES}
FULL = Outer(
    count=3, share=0.5, switch=True, inner=Inner(word="two", maybe=4), weights={"depth": 0.1},
    several=(Inner(), Inner(maybe=1)), pair=(0.25, 0.5), shape=ForeignConfig(side=2),
)  # fmt: skip


@pytest.mark.parametrize("config", [FULL, Outer(count=1, share=0.0)])
def test_what_is_written_is_read(config):
    text = json.dumps(write(config, FAMILIES))
    assert read(Outer, json.loads(text), "config", FAMILIES) == config


def test_ours_by_short_name_others_by_dotted_path():
    assert short_name(RoundShapeConfig) == "round_shape"
    assert SHAPES.write(RoundShapeConfig(radius=2.0)) == {"kind": "round_shape", "radius": 2.0}
    kind = f"{__name__}:ForeignConfig"
    assert SHAPES.write(ForeignConfig(side=2)) == {"kind": kind, "side": 2}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cuont": 3}, "config: unknown field 'cuont'; did you mean count"),
        ({"count": 2.5}, "config.count: got 2.5; it must be a whole number"),
        ({"count": True}, "config.count: got True"),
        ({"switch": 1}, "config.switch: got 1; it must be true or false"),
        ({"share": "x"}, "config.share: got 'x'; it must be a number"),
        ({"inner": {"word": "three"}}, "config.inner.word: got 'three'; allowed are one, two"),
        ({"inner": {"maybe": "a"}}, "config.inner.maybe: got 'a'"),
        ({"inner": 3}, "config.inner: got 3; it must be an object"),
        ({"several": [{"wrod": "one"}]}, r"config.several\[0\]: unknown field 'wrod'.*mean word"),
        ({"pair": [1.0]}, "config.pair: got 1 values; it must have 2"),
        ({"pair": 1.0}, "config.pair: got 1.0; it must be a list"),
        ({"weights": {"depth": "x"}}, "config.weights.depth: got 'x'"),
        ({"shape": {"radius": 1.0}}, "config.shape: got .*must be an object with a kind"),
        ({"shape": {"kind": "round_shpae"}}, "shape: got 'round_shpae'.*did you mean round_shape"),
        ({"shape": {"kind": "no.such:Thing"}}, "No module named 'no'.*PYTHONPATH"),
        ({"shape": {"kind": f"{__name__}:Thing"}}, "has no 'Thing'"),
        ({"shape": {"kind": f"{__name__}:write"}}, "is not a dataclass"),
        ({"shape": {"kind": "round_shape", "raduis": 1.0}}, "unknown field 'raduis'.*mean radius"),
    ],
)
def test_what_does_not_fit_is_named(change, said):
    given = write(FULL, FAMILIES) | change
    with pytest.raises(ValueError, match=said):
        read(Outer, given, "config", FAMILIES)


def test_missing_fields_and_whole_numbers_for_numbers():
    with pytest.raises(ValueError, match="config: missing count, share"):
        read(Outer, {}, "config", FAMILIES)
    share = read(Outer, {"count": 1, "share": 1}, "config", FAMILIES).share
    assert isinstance(share, float)


def test_what_could_not_be_found_again_is_not_written():
    @dataclass(frozen=True)
    class Local:
        pass

    for given in (Local(), object()):
        with pytest.raises(ValueError, match="shape: .*cannot be saved"):
            SHAPES.write(given)


def test_looking_up_names():
    assert imported("math:pi", "number") == pytest.approx(3.14159, abs=1e-5)
    with pytest.raises(ValueError, match="name it as package.module:Name"):
        imported("math:tau2", "number")
    assert nearest("stpes", ["steps", "seed"]) == "; did you mean steps?"
    assert nearest("zzz", ["steps", "seed"]) == ""
