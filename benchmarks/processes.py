"""Whole processes: `map` on 200 tokens, and the cost of importing the package.

    python benchmarks/processes.py [--repeats 5] [--pairs 10]

Prints one JSON row a figure: median and range over the runs, peak memory of the process from the
operating system. The model must be in the cache: the first run, which fetches it, is not counted.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data import topics

from rows import row


def run(arguments: list[str]) -> tuple[float, float]:
    """Seconds and peak resident MB of one process."""
    started = time.perf_counter()
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status != 0:
        raise SystemExit(f"{arguments} ended with {status}")
    return seconds, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text(topics.topics["assignment"])
        command = [sys.executable, "-m", "tokendepth", "map", "--file", str(text)]
        command += ["--limit", "200", "--html", str(Path(folder) / "map.html")]
        run(command)
        runs = [run(command) for _ in range(options.repeats)]
    row("map, 200 tokens of smollm2, seconds", [seconds for seconds, _ in runs], reach="under 20")
    row("map, 200 tokens of smollm2, peak MB", [peak for _, peak in runs], reach="under 2000")

    arms = {name: [sys.executable, "-c", f"import {name}"] for name in ("tokendepth", "torch")}
    for command in arms.values():
        run(command)
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(options.pairs):
        for name in random.sample(list(arms), k=2):
            times[name].append(run(arms[name])[0])
    pairs = zip(times["tokendepth"], times["torch"], strict=True)
    ratios = [ours / theirs for ours, theirs in pairs]
    row("import tokendepth / import torch, ratio of a pair", ratios, reach="at most 1.15")


if __name__ == "__main__":
    main()
