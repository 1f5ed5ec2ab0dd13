"""Prefill and decoding against transformers, what a long text costs, and half the depth.

    python benchmarks/decoding.py [--rounds 7]

SmolLM2-135M's weights in float32. The reference decodes in a bare loop over the model's own forward
pass with its cache and the fastest attention it has here. Arms run in shuffled order within each
round, and a ratio is taken round by round. Prints one JSON row a figure: median and range.
"""

import argparse
import random
import statistics
import time
import warnings
from collections.abc import Callable

import psutil
import torch
import transformers

import tokendepth
from rows import row
from tokendepth.nn.levels import levels_of

Arm = Callable[[], object]
PROMPT = 16


def rounds(arms: dict[str, Arm], count: int) -> dict[str, list[float]]:
    """Seconds of each arm, round by round, after one run of each that is not counted."""
    for arm in arms.values():
        arm()
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(count):
        for name in random.sample(list(arms), k=len(arms)):
            started = time.perf_counter()
            arms[name]()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def over(seconds: dict[str, list[float]], first: str, second: str) -> list[float]:
    """Ratio of two arms, round by round."""
    return [one / other for one, other in zip(seconds[first], seconds[second], strict=True)]


def text(batch: int, length: int) -> torch.Tensor:
    return torch.randint(1_000, 40_000, (batch, length), generator=torch.Generator().manual_seed(0))


def theirs(model: transformers.PreTrainedModel, ids: torch.Tensor, new: int) -> list[float]:
    """Seconds of each greedy step, the prompt's first."""
    cache, seconds = transformers.DynamicCache(config=model.config), []
    for _ in range(new):
        started = time.perf_counter()
        output = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        ids = output.logits[:, -1:].argmax(-1)
        seconds.append(time.perf_counter() - started)
    return seconds


def ours(
    decoder: tokendepth.Decoder, ids: torch.Tensor, new: int, depth: int | None = None
) -> list[float]:
    """The same by `stream`: tokens, depths and confidences of every step are made too."""
    options = tokendepth.GenerateOptions(
        max_new_tokens=new, depth=() if depth is None else (depth,)
    )
    steps = tokendepth.stream(decoder, ids.tolist(), options)
    seconds = []
    for _ in range(new):
        started = time.perf_counter()
        next(steps)
        seconds.append(time.perf_counter() - started)
    return seconds


def fastest_attention(model: transformers.PreTrainedModel, count: int) -> str:
    """Which of the model's attentions reads a prompt fastest here."""
    ids = text(1, 512)

    def reading(name: str) -> Arm:
        def run() -> None:
            model.set_attn_implementation(name)
            model(ids, use_cache=True)

        return run

    seconds = rounds({name: reading(name) for name in ("sdpa", "eager")}, count)
    best = min(seconds, key=lambda name: statistics.median(seconds[name]))
    model.set_attn_implementation(best)
    return best


def prefill(loaded: tokendepth.Loaded, count: int, attention: str) -> None:
    ids, decoder = text(1, 512), loaded.decoder
    arms = {
        "theirs": lambda: loaded.model(ids, use_cache=True),
        "ours": lambda: decoder(ids, cache=decoder.cache()),
    }
    row(
        "prefill of 512 with a cache, speed against transformers",
        over(rounds(arms, count), "theirs", "ours"),
        attention=attention,
        reach="at least 1.0",
    )


def greedy(loaded: tokendepth.Loaded, batch: int, count: int, reach: str) -> None:
    ids = text(batch, PROMPT)
    arms = {
        "theirs": lambda: theirs(loaded.model, ids, 128),
        "ours": lambda: ours(loaded.decoder, ids, 128),
    }
    seconds = rounds(arms, count)
    row(
        f"greedy decoding of 128 tokens, batch {batch}, speed against a bare loop",
        over(seconds, "theirs", "ours"),
        ours_ms_per_token=round(1e3 * statistics.median(seconds["ours"]) / 128, 2),
        theirs_ms_per_token=round(1e3 * statistics.median(seconds["theirs"]) / 128, 2),
        reach=reach,
    )


def long_text(loaded: tokendepth.Loaded, count: int) -> None:
    """The 50th and the 400th token: the median of the ten around each, in the same run."""
    ids, mine, other = text(1, PROMPT), [], []
    for _ in range(count):
        steps, their_steps = ours(loaded.decoder, ids, 405), theirs(loaded.model, ids, 405)
        at_400 = statistics.median(steps[395:405])
        mine.append(at_400 / statistics.median(steps[45:55]))
        other.append(at_400 / statistics.median(their_steps[395:405]))
    row("400th decoded token over our 50th, time", mine, reach="at most 1.3")
    row("400th decoded token over transformers' 400th, time", other, reach="at most 1.0")


def memory(loaded: tokendepth.Loaded) -> None:
    """The process's own peak above what it held before, and weights and cache by their bytes."""
    decoder = loaded.decoder
    loaded.__dict__.pop("decoder")
    del loaded
    weights = sum(part.nbytes for part in {id(p): p for p in decoder.parameters()}.values())
    process = psutil.Process()
    before, most = process.memory_info().rss, 0
    cache = decoder.cache(room=PROMPT + 256)
    options = tokendepth.GenerateOptions(max_new_tokens=256)
    for _ in tokendepth.stream(decoder, text(8, PROMPT).tolist(), options, cache=cache):
        most = max(most, process.memory_info().rss)
    total = weights + cache.nbytes
    row(
        "peak memory of decoding, batch 8 x 272, over weights and cache",
        [(weights + most - before) / total],
        weights_bytes=weights,
        cache_bytes=cache.nbytes,
        reach="at most 1.10",
    )


def half(loaded: tokendepth.Loaded, count: int) -> None:
    """The bytes of weights that a step reads, of half the depth against all of it."""
    decoder, ids, new = loaded.decoder, text(1, PROMPT), 128
    depth = len(decoder.blocks) // 2
    arms = {
        "all": lambda: ours(decoder, ids, new),
        "half": lambda: ours(decoder, ids, new, depth),
    }
    seconds = rounds(arms, count)
    block = decoder.blocks[0]
    whole = sum(part.nbytes for part in block.parameters())
    kept = block.attention.key.weight.nbytes + block.attention.value.weight.nbytes
    found = levels_of(decoder.head.weight)
    head = (
        decoder.head.weight.nbytes if found is None else found.levels.nbytes + found.scales.nbytes
    )
    layers = len(decoder.blocks)
    promised = (layers * whole + head) / (depth * whole + (layers - depth) * kept + head)
    measured = over(seconds, "all", "half")
    row(
        "half the depth, decoding at batch 1, share of the speed-up that executed bytes promise",
        [one / promised for one in measured],
        speedup=round(statistics.median(measured), 3),
        promised=round(promised, 3),
        reach="at least 0.90",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    with torch.no_grad():
        loaded = tokendepth.load("smollm2")
        attention = fastest_attention(loaded.model, options.rounds)
        prefill(loaded, options.rounds, attention)
        greedy(loaded, 1, options.rounds, reach="at least 1.4")
        greedy(loaded, 8, options.rounds, reach="at least 1.15")
        half(loaded, options.rounds)
        long_text(loaded, max(2, options.rounds // 3))
        memory(loaded)


if __name__ == "__main__":
    main()
