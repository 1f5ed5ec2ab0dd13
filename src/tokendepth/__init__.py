"""Transformers whose depth is decided per token: measure it, train it, run it sparsely.

The public names are loaded when first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tokendepth.adapters.load import Loaded, load
    from tokendepth.adapters.view import Parts, View, find_view
    from tokendepth.errors import FetchError, NonFiniteError
    from tokendepth.measure.capture import capture
    from tokendepth.measure.depth_map import DepthMap
    from tokendepth.measure.lens import Lens
    from tokendepth.measure.mapping import MapInterrupted, MapOptions, map
    from tokendepth.measure.settling import Rule

_HOME = {
    "DepthMap": "measure.depth_map",
    "FetchError": "errors",
    "Lens": "measure.lens",
    "Loaded": "adapters.load",
    "MapInterrupted": "measure.mapping",
    "MapOptions": "measure.mapping",
    "NonFiniteError": "errors",
    "Parts": "adapters.view",
    "Rule": "measure.settling",
    "View": "adapters.view",
    "capture": "measure.capture",
    "find_view": "adapters.view",
    "load": "adapters.load",
    "map": "measure.mapping",
}

__all__ = [
    "DepthMap",
    "FetchError",
    "Lens",
    "Loaded",
    "MapInterrupted",
    "MapOptions",
    "NonFiniteError",
    "Parts",
    "Rule",
    "View",
    "__version__",
    "capture",
    "find_view",
    "load",
    "map",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tokendepth' has no attribute {name!r}")
    return getattr(import_module(f"tokendepth.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
