"""The dense decoder against transformers, the cost of the seam, and gathered against dense.

    python benchmarks/gathered.py [--seconds 60]

Arms run in shuffled order within each round; a ratio is taken round by round. Prints one JSON row a
figure: median and range of the ratios, beside what FLOPs predict.
"""

import argparse
import statistics

import torch

import tokendepth
from rows import ratios, row
from tokendepth.models.cost import dense_twin, ledger


def against_transformers(loaded: tokendepth.Loaded, budget: float) -> None:
    ids = torch.randint(49_152, (1, 512), generator=torch.Generator().manual_seed(0))
    arms = {
        "transformers": lambda: loaded.model(ids, use_cache=False),
        "ours": lambda: loaded.decoder(ids),
    }
    row("prefill of 512, speed against transformers", ratios(arms, budget), reach="at least 0.95")


def seam(budget: float) -> None:
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
    row("cost of the seam, time over a bare loop", ratios(arms, budget), reach="at most 1.05")


def gathered(loaded: tokendepth.Loaded, budget: float, share: float) -> None:
    decoder, length = loaded.decoder, 256
    ids = torch.randint(49_152, (8, length), generator=torch.Generator().manual_seed(0))
    policy = tokendepth.RandomKeep(share)
    output = decoder(ids, policy=policy, row_keys=torch.arange(8))
    plan = output.plan
    full = ledger(decoder, dense_twin(output.record)).total_flops
    projected = full / ledger(decoder, output, executor="gathered").total_flops
    del output
    keys = torch.arange(8)
    arms = {
        name: lambda name=name: decoder(ids, plan=plan, executor=name, row_keys=keys)
        for name in ("dense", "gathered")
    }
    measured = ratios(arms, budget)
    dense = {
        "neutral": lambda: decoder(ids, policy=tokendepth.Dense()),
        "gathered": arms["gathered"],
    }
    against_neutral = ratios(dense, budget)
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
    parser.add_argument("--seconds", type=float, default=60.0, help="of rounds, each figure")
    parser.add_argument("--share", type=float, default=0.5)
    options = parser.parse_args()
    with torch.no_grad():
        seam(options.seconds)
        loaded = tokendepth.load("smollm2")
        against_transformers(loaded, options.seconds)
        gathered(loaded, options.seconds, options.share)


if __name__ == "__main__":
    main()
