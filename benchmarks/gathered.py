"""The dense decoder against transformers, the cost of the seam, and gathered against dense.

    python benchmarks/gathered.py [--repeats 7]

Arms run in shuffled order within each round; a ratio is taken round by round. Prints one JSON row a
figure: median and range of the ratios, beside what FLOPs predict.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable

import torch

import tokendepth


def ratios(arms: dict[str, Callable[[], object]], repeats: int) -> list[float]:
    """Seconds of the second arm over the first, round by round, after one warm-up of each."""
    reference, ours = arms
    for arm in arms.values():
        arm()
    rounds = []
    for _ in range(repeats):
        seconds = {}
        for name in random.sample(list(arms), k=2):
            started = time.perf_counter()
            arms[name]()
            seconds[name] = time.perf_counter() - started
        rounds.append(seconds[reference] / seconds[ours])
    return rounds


def row(figure: str, values: list[float], **more: object) -> None:
    print(
        json.dumps(
            {
                "figure": figure,
                "median": round(statistics.median(values), 3),
                "min": round(min(values), 3),
                "max": round(max(values), 3),
                "rounds": len(values),
                **more,
            }
        ),
        flush=True,
    )


def layer_flops(config: tokendepth.DecoderConfig, share: float, length: int) -> float:
    """FLOPs per token of one block of which a share of the rows runs, keys and values of all.

    A multiply-add is 2; a query sees (length + 1) / 2 keys on average.
    """
    heads, pairs = config.num_heads * config.head_dim, (length + 1) / 2
    key_values = 2 * 2 * config.width * config.num_key_value_heads * config.head_dim
    attention = 2 * 2 * config.width * heads + 2 * 2 * heads * pairs
    feed_forward = 2 * 3 * config.width * config.inner_width
    return key_values + share * (attention + feed_forward)


def against_transformers(loaded: tokendepth.Loaded, repeats: int) -> None:
    ids = torch.randint(49_152, (1, 512), generator=torch.Generator().manual_seed(0))
    arms = {
        "transformers": lambda: loaded.model(ids, use_cache=False),
        "ours": lambda: loaded.decoder(ids),
    }
    row("prefill of 512, speed against transformers", ratios(arms, repeats), reach="at least 0.95")


def seam(repeats: int) -> None:
    config = tokendepth.DecoderConfig(
        vocab_size=256, width=256, num_blocks=6, num_heads=4, num_key_value_heads=4, head_dim=64,
        inner_width=1024,
    )  # fmt: skip
    torch.manual_seed(0)
    decoder = tokendepth.Decoder(config).eval()
    ids = torch.randint(256, (1, 64))

    def bare() -> torch.Tensor:
        turn = decoder.rotary.turn(torch.arange(64)[None], torch.float32)
        hidden = decoder.embedding(ids)
        for block in decoder.blocks:
            normed = block.attention_norm(hidden)
            queries = block.attention.queries(normed, turn)
            keys, values = block.attention.keys_values(normed, turn)
            hidden = hidden + block.attention.output(
                block.attention.attend(queries, keys, values, None)
            )
            hidden = hidden + block.feed_forward(block.feed_forward_norm(hidden))
        return decoder.read_out(hidden)

    policy = tokendepth.Dense()

    arms = {"seam": lambda: decoder(ids, policy=policy), "bare": bare}
    for arm in arms.values():  # calls of milliseconds: warm up longer, and alternate call by call
        for _ in range(50):
            arm()
    row(
        "cost of the seam, time over a bare loop", ratios(arms, 100 * repeats), reach="at most 1.05"
    )


def gathered(loaded: tokendepth.Loaded, repeats: int, share: float) -> None:
    decoder, length = loaded.decoder, 256
    ids = torch.randint(49_152, (8, length), generator=torch.Generator().manual_seed(0))
    policy = tokendepth.RandomKeep(share)
    output = decoder(ids, policy=policy, row_keys=torch.arange(8))
    plan, blocks = output.plan, decoder.config.num_blocks
    del output
    full, part = (layer_flops(decoder.config, one, length) for one in (1.0, share))
    head = 2 * decoder.config.width * decoder.config.vocab_size
    projected = (blocks * full + head) / (full + (blocks - 1) * part + head)
    keys = torch.arange(8)
    arms = {
        name: lambda name=name: decoder(ids, plan=plan, executor=name, row_keys=keys)
        for name in ("dense", "gathered")
    }
    measured = ratios(arms, repeats)
    dense = {
        "neutral": lambda: decoder(ids, policy=tokendepth.Dense()),
        "gathered": arms["gathered"],
    }
    against_neutral = ratios(dense, repeats)
    reached = statistics.median(against_neutral) / projected
    row(
        f"gathered against the dense model, RandomKeep({share}), batch 8 x 256, speed",
        against_neutral,
        projected_by_flops=round(projected, 3),
        share_of_projected=round(reached, 3),
        against_dense_execution_of_the_plan=round(statistics.median(measured), 3),
        reach="at least 0.85 of the projected speed-up",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--share", type=float, default=0.5)
    options = parser.parse_args()
    with torch.no_grad():
        seam(options.repeats)
        loaded = tokendepth.load("smollm2")
        against_transformers(loaded, options.repeats)
        gathered(loaded, options.repeats, options.share)


if __name__ == "__main__":
    main()
