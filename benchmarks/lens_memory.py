"""Peak memory of capture and lens on 4,096 tokens of a 30-layer model with a 49,152 vocabulary.

    python benchmarks/lens_memory.py [--tokens 4096]

Prints one JSON row. All logits at once would take 4,096 x 31 x 49,152 x 4 bytes = 25 GB.
"""

import argparse
import json
import resource
import time

import torch

import tokendepth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096)
    options = parser.parse_args()
    loaded = tokendepth.load("smollm2")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(49_152, (1, options.tokens), generator=generator)
    started = time.perf_counter()
    lens = tokendepth.Lens(loaded.view)
    readings = lens.read(tokendepth.capture(loaded.view, ids), torch.ones_like(ids).bool())
    print(
        json.dumps(
            {
                "figure": "capture and lens, peak MB of the process",
                "tokens": options.tokens,
                "states": readings.num_layers + 1,
                "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                "seconds": round(time.perf_counter() - started, 1),
                "reach": "under 2000",
            }
        )
    )


if __name__ == "__main__":
    main()
