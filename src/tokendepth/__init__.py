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
    from tokendepth.depth.early_exit import EarlyExit
    from tokendepth.depth.fixed_exit import FixedExit
    from tokendepth.depth.halting import Halting, HaltingConfig
    from tokendepth.depth.mixture_of_depths import MixtureOfDepths
    from tokendepth.depth.random_keep import RandomKeep
    from tokendepth.depth.token_selective import TokenSelective
    from tokendepth.engine.bench_result import Benchmark
    from tokendepth.engine.benchmark import benchmark
    from tokendepth.engine.decode import GenerateOptions, NewToken, stream
    from tokendepth.engine.generate import generate
    from tokendepth.engine.generation import Generation
    from tokendepth.engine.sampling import Sampling
    from tokendepth.errors import CausalityError, DamagedError, FetchError, NonFiniteError
    from tokendepth.evaluation.causality import probe
    from tokendepth.evaluation.evaluate import evaluate
    from tokendepth.evaluation.halt_options import HaltOptions
    from tokendepth.evaluation.halting import evaluate_halting
    from tokendepth.evaluation.halting_result import HaltingEvaluation
    from tokendepth.evaluation.result import Evaluation
    from tokendepth.measure.capture import capture
    from tokendepth.measure.convergence import ConvergenceOptions, convergence
    from tokendepth.measure.convergence_result import Convergence
    from tokendepth.measure.depth_map import DepthMap
    from tokendepth.measure.lens import Lens
    from tokendepth.measure.mapping import MapInterrupted, MapOptions, map
    from tokendepth.measure.settling import Rule
    from tokendepth.measure.transport import TransportInterrupted, transport
    from tokendepth.measure.transport_options import TransportOptions
    from tokendepth.measure.transport_result import Transport
    from tokendepth.models.config import DecoderConfig
    from tokendepth.models.convert import from_transformers, to_transformers
    from tokendepth.models.cost import Ledger, ledger
    from tokendepth.models.decoder import Decoder, DecoderOutput
    from tokendepth.models.saved import load_model, save_model
    from tokendepth.models.schedule import looped, stack, with_loops
    from tokendepth.nn.cache import Cache, load_cache
    from tokendepth.nn.rotary import Stretch
    from tokendepth.recipes.named import recipe_named
    from tokendepth.text.corpora import open_corpus
    from tokendepth.training.objective import CrossEntropy, Losses
    from tokendepth.training.optimise import OptimizerConfig
    from tokendepth.training.recipe import Recipe
    from tokendepth.training.result import Trained
    from tokendepth.training.retrofit import RetrofitOptions, retrofit
    from tokendepth.training.run import open_run
    from tokendepth.training.train import TrainOptions, resume, train
    from tokendepth.types import Decision, Plan, Schedule, Span

_HOME = {
    "Benchmark": "engine.bench_result",
    "Cache": "nn.cache",
    "CausalityError": "errors",
    "Comparison": "comparison.result",
    "Context": "depth.base",
    "Convergence": "measure.convergence_result",
    "ConvergenceOptions": "measure.convergence",
    "CrossEntropy": "training.objective",
    "DamagedError": "errors",
    "Decision": "types",
    "Decoder": "models.decoder",
    "DecoderConfig": "models.config",
    "DecoderOutput": "models.decoder",
    "Dense": "depth.dense",
    "DepthMap": "measure.depth_map",
    "EarlyExit": "depth.early_exit",
    "Evaluation": "evaluation.result",
    "FetchError": "errors",
    "FixedExit": "depth.fixed_exit",
    "GenerateOptions": "engine.decode",
    "Generation": "engine.generation",
    "HaltOptions": "evaluation.halt_options",
    "Halting": "depth.halting",
    "HaltingConfig": "depth.halting",
    "HaltingEvaluation": "evaluation.halting_result",
    "HuggingFaceView": "adapters.huggingface",
    "Ledger": "models.cost",
    "Lens": "measure.lens",
    "Loaded": "adapters.load",
    "Losses": "training.objective",
    "MapInterrupted": "measure.mapping",
    "MapOptions": "measure.mapping",
    "MixtureOfDepths": "depth.mixture_of_depths",
    "NewToken": "engine.decode",
    "NonFiniteError": "errors",
    "OptimizerConfig": "training.optimise",
    "Parts": "adapters.huggingface",
    "Plan": "types",
    "Policy": "depth.base",
    "RandomKeep": "depth.random_keep",
    "Recipe": "training.recipe",
    "RetrofitOptions": "training.retrofit",
    "Rule": "measure.settling",
    "Sampling": "engine.sampling",
    "Schedule": "types",
    "Span": "types",
    "Stretch": "nn.rotary",
    "TokenSelective": "depth.token_selective",
    "TrainOptions": "training.train",
    "Trained": "training.result",
    "Transport": "measure.transport_result",
    "TransportInterrupted": "measure.transport",
    "TransportOptions": "measure.transport_options",
    "View": "adapters.view",
    "benchmark": "engine.benchmark",
    "capture": "measure.capture",
    "compare": "comparison.runs",
    "convergence": "measure.convergence",
    "evaluate": "evaluation.evaluate",
    "evaluate_halting": "evaluation.halting",
    "find_view": "adapters.huggingface",
    "from_transformers": "models.convert",
    "generate": "engine.generate",
    "ledger": "models.cost",
    "load": "adapters.load",
    "load_cache": "nn.cache",
    "load_model": "models.saved",
    "looped": "models.schedule",
    "map": "measure.mapping",
    "open_corpus": "text.corpora",
    "open_run": "training.run",
    "probe": "evaluation.causality",
    "recipe_named": "recipes.named",
    "resume": "training.train",
    "retrofit": "training.retrofit",
    "save_model": "models.saved",
    "stack": "models.schedule",
    "stream": "engine.decode",
    "to_transformers": "models.convert",
    "train": "training.train",
    "transport": "measure.transport",
    "with_loops": "models.schedule",
}

__all__ = [
    "Benchmark",
    "Cache",
    "CausalityError",
    "Comparison",
    "Context",
    "Convergence",
    "ConvergenceOptions",
    "CrossEntropy",
    "DamagedError",
    "Decision",
    "Decoder",
    "DecoderConfig",
    "DecoderOutput",
    "Dense",
    "DepthMap",
    "EarlyExit",
    "Evaluation",
    "FetchError",
    "FixedExit",
    "GenerateOptions",
    "Generation",
    "HaltOptions",
    "Halting",
    "HaltingConfig",
    "HaltingEvaluation",
    "HuggingFaceView",
    "Ledger",
    "Lens",
    "Loaded",
    "Losses",
    "MapInterrupted",
    "MapOptions",
    "MixtureOfDepths",
    "NewToken",
    "NonFiniteError",
    "OptimizerConfig",
    "Parts",
    "Plan",
    "Policy",
    "RandomKeep",
    "Recipe",
    "RetrofitOptions",
    "Rule",
    "Sampling",
    "Schedule",
    "Span",
    "Stretch",
    "TokenSelective",
    "TrainOptions",
    "Trained",
    "Transport",
    "TransportInterrupted",
    "TransportOptions",
    "View",
    "__version__",
    "benchmark",
    "capture",
    "compare",
    "convergence",
    "evaluate",
    "evaluate_halting",
    "find_view",
    "from_transformers",
    "generate",
    "ledger",
    "load",
    "load_cache",
    "load_model",
    "looped",
    "map",
    "open_corpus",
    "open_run",
    "probe",
    "recipe_named",
    "resume",
    "retrofit",
    "save_model",
    "stack",
    "stream",
    "to_transformers",
    "train",
    "transport",
    "with_loops",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tokendepth' has no attribute {name!r}")
    return getattr(import_module(f"tokendepth.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
