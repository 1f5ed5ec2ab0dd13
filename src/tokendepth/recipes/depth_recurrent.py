"""Depth-recurrent models: a prelude, a core that is looped, a coda; docs/depth-recurrent.md.

Weights and states start as in Huginn (arXiv:2502.05171): all with the variance 2 / (5 width),
embeddings scaled up by sqrt(width), the looped state as a truncated normal of the same size.
"""

import dataclasses
import math

from tokendepth.models.config import DecoderConfig
from tokendepth.models.schedule import looped
from tokendepth.training.initial import Initial
from tokendepth.training.loops import RandomLoops
from tokendepth.training.objective import CrossEntropy
from tokendepth.training.optimise import OptimizerConfig
from tokendepth.training.recipe import Recipe
from tokendepth.types import Schedule

LOOPS = 8
"""The mean in training, and the depth at which the models are compared."""


def recurrent_small() -> Recipe:
    """A core of two blocks of width 96, looped 1 to 32 times, 8 on average; 467,904 weights.

    Command: `tokendepth train recurrent_small --data tinyshakespeare`. Hardware: two cores,
    minutes. Expected: see docs/depth-recurrent.md.
    """
    config = _decoder(width=96, heads=4, key_value_heads=4, inner=256, prelude=1, core=2, coda=1)
    return Recipe(
        recipe="recurrent_small",
        decoder=config,
        schedule=_schedule(prelude=1, core=2, coda=1),
        objective=RandomLoops(mean=float(LOOPS)),
        initial=_initial(config),
        optimizer=OptimizerConfig(
            learning_rate=2e-3, final_learning_rate=2e-4, warmup_steps=20, decayed="matrices"
        ),
        window=128,
        order="random",
        batch=16,
        steps=1000,
    )


def recurrent_fixed_small() -> Recipe:
    """The control of `recurrent_small`: the same model, always at 8 loops.

    Command: `tokendepth train recurrent_fixed_small --data tinyshakespeare`. Hardware: two cores,
    minutes. Expected: see docs/depth-recurrent.md.
    """
    return dataclasses.replace(
        recurrent_small(), recipe="recurrent_fixed_small", objective=CrossEntropy()
    )


def recurrent_135m() -> Recipe:
    """The published geometry: blocks of SmolLM-135M, 2 + 4 + 2 of them; 57,296,448 weights.

    262,144 tokens a step, 49,210 steps. The split of the blocks and the rates are not published;
    these are Huginn's split and SmolLM's practice.

    Command: `tokendepth train recurrent_135m --data hub:OWNER/NAME --device cuda`. Hardware: about
    100 hours of one RTX 4090, as published. Expected: published loss 3.80 after one loop, 3.20
    after 8, flat to 32; not measured here.
    """
    config = _decoder(
        width=576, heads=9, key_value_heads=3, inner=1536, prelude=2, core=4, coda=2, vocab=49_152
    )
    return Recipe(
        recipe="recurrent_135m",
        decoder=config,
        schedule=_schedule(prelude=2, core=4, coda=2),
        objective=RandomLoops(mean=float(LOOPS)),
        initial=_initial(config),
        optimizer=OptimizerConfig(
            learning_rate=6e-4, final_learning_rate=6e-5, warmup_steps=984, decayed="matrices"
        ),
        tokenizer="HuggingFaceTB/SmolLM2-135M",
        window=2048,
        batch=8,
        accumulate=16,
        steps=49_210,
        precision="bfloat16",
    )


def _decoder(
    *,
    width: int,
    heads: int,
    key_value_heads: int,
    inner: int,
    prelude: int,
    core: int,
    coda: int,
    vocab: int = 65,
) -> DecoderConfig:
    """Llama's blocks, sandwich norms without gains in the core, an adapter, a tied head."""
    return DecoderConfig(
        vocab_size=vocab,
        width=width,
        num_blocks=prelude + core + coda,
        num_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=width // heads,
        inner_width=inner,
        bare_post_norms=tuple(range(prelude, prelude + core)),
        embedding_scale=math.sqrt(width),
        adapter=True,
        key_value_rule="carried",
    )


def _schedule(*, prelude: int, core: int, coda: int) -> Schedule:
    return looped(
        prelude=prelude,
        core=core,
        coda=coda,
        loops=LOOPS,
        start="truncated",
        start_std=math.sqrt(2 / 5),
        normed_coda=True,
    )


def _initial(config: DecoderConfig) -> Initial:
    std = math.sqrt(2 / (5 * config.width))
    return Initial(embeddings=std, matrices=std, residual=std)
