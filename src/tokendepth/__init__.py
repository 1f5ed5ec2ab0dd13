"""Transformers whose depth is decided per token: measure it, train it, run it sparsely.

The public names are loaded when first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tokendepth.adapters.huggingface import HuggingFaceView, Parts, find_view
    from tokendepth.adapters.load import Loaded, load
    from tokendepth.adapters.view import View
    from tokendepth.comparison.result import Comparison
    from tokendepth.comparison.runs import compare
    from tokendepth.depth.base import Context, Policy
    from tokendepth.depth.dense import Dense
    from tokendepth.depth.fixed_exit import FixedExit
    from tokendepth.depth.random_keep import RandomKeep
    from tokendepth.engine.bench_result import Benchmark
    from tokendepth.engine.benchmark import benchmark
    from tokendepth.errors import CausalityError, FetchError, NonFiniteError
    from tokendepth.evaluation.causality import probe
    from tokendepth.evaluation.evaluate import evaluate
    from tokendepth.evaluation.result import Evaluation
    from tokendepth.measure.capture import capture
    from tokendepth.measure.depth_map import DepthMap
    from tokendepth.measure.lens import Lens
    from tokendepth.measure.mapping import MapInterrupted, MapOptions, map
    from tokendepth.measure.settling import Rule
    from tokendepth.measure.transport import TransportInterrupted, transport
    from tokendepth.measure.transport_options import TransportOptions
    from tokendepth.measure.transport_result import Transport
    from tokendepth.models.config import DecoderConfig
    from tokendepth.models.convert import from_transformers
    from tokendepth.models.cost import Ledger, ledger
    from tokendepth.models.decoder import Decoder, DecoderOutput, load_decoder
    from tokendepth.models.schedule import looped, stack
    from tokendepth.models.slots import slots_of
    from tokendepth.nn.cache import Cache
    from tokendepth.types import Decision, Plan, Schedule, Span

_HOME = {
    "Benchmark": "engine.bench_result",
    "Cache": "nn.cache",
    "CausalityError": "errors",
    "Comparison": "comparison.result",
    "Context": "depth.base",
    "Decision": "types",
    "Decoder": "models.decoder",
    "DecoderConfig": "models.config",
    "DecoderOutput": "models.decoder",
    "Dense": "depth.dense",
    "DepthMap": "measure.depth_map",
    "Evaluation": "evaluation.result",
    "FetchError": "errors",
    "FixedExit": "depth.fixed_exit",
    "HuggingFaceView": "adapters.huggingface",
    "Ledger": "models.cost",
    "Lens": "measure.lens",
    "Loaded": "adapters.load",
    "MapInterrupted": "measure.mapping",
    "MapOptions": "measure.mapping",
    "NonFiniteError": "errors",
    "Parts": "adapters.huggingface",
    "Plan": "types",
    "Policy": "depth.base",
    "RandomKeep": "depth.random_keep",
    "Rule": "measure.settling",
    "Schedule": "types",
    "Span": "types",
    "Transport": "measure.transport_result",
    "TransportInterrupted": "measure.transport",
    "TransportOptions": "measure.transport_options",
    "View": "adapters.view",
    "benchmark": "engine.benchmark",
    "capture": "measure.capture",
    "compare": "comparison.runs",
    "evaluate": "evaluation.evaluate",
    "find_view": "adapters.huggingface",
    "from_transformers": "models.convert",
    "ledger": "models.cost",
    "load": "adapters.load",
    "load_decoder": "models.decoder",
    "looped": "models.schedule",
    "map": "measure.mapping",
    "probe": "evaluation.causality",
    "slots_of": "models.slots",
    "stack": "models.schedule",
    "transport": "measure.transport",
}

__all__ = [
    "Benchmark",
    "Cache",
    "CausalityError",
    "Comparison",
    "Context",
    "Decision",
    "Decoder",
    "DecoderConfig",
    "DecoderOutput",
    "Dense",
    "DepthMap",
    "Evaluation",
    "FetchError",
    "FixedExit",
    "HuggingFaceView",
    "Ledger",
    "Lens",
    "Loaded",
    "MapInterrupted",
    "MapOptions",
    "NonFiniteError",
    "Parts",
    "Plan",
    "Policy",
    "RandomKeep",
    "Rule",
    "Schedule",
    "Span",
    "Transport",
    "TransportInterrupted",
    "TransportOptions",
    "View",
    "__version__",
    "benchmark",
    "capture",
    "compare",
    "evaluate",
    "find_view",
    "from_transformers",
    "ledger",
    "load",
    "load_decoder",
    "looped",
    "map",
    "probe",
    "slots_of",
    "stack",
    "transport",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tokendepth' has no attribute {name!r}")
    return getattr(import_module(f"tokendepth.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
