"""Kill a training run at random moments; it must go on, and end as the unbroken one, bit for bit.

python benchmarks/kills.py --kills 20
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from tokendepth.models.saved import newest_checkpoint, read_tensors
from tokendepth.training.track import read_metrics


def process(out: Path, steps: int, every: int) -> subprocess.Popen[bytes]:
    """Train, or go on where the run is there already."""
    given = ["--resume", str(out)]
    if not out.is_dir():
        given = [
            "dense_tiny", "--data", "pydoc", "--out", str(out), "--steps", str(steps),
            "--checkpoint-every", str(every), "--evaluate-every", "0",
            "--set", "evaluate_tokens=500",
        ]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "tokendepth", "train", *given],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(out: Path, steps: int, every: int) -> float:
    """Run to the end; the seconds that took."""
    began, one = time.perf_counter(), process(out, steps, every)
    _, errors = one.communicate()
    if one.returncode != 0:
        raise SystemExit(f"a resume failed: {errors.decode()}")
    return time.perf_counter() - began


def last_step(out: Path) -> int:
    rows = read_metrics(out)
    return max((row["step"] for row in rows), default=0)


def kill_once(out: Path, steps: int, every: int, after: float) -> int | None:
    """Kill after so many seconds; steps that must be repeated, None if it had ended before."""
    one = process(out, steps, every)
    try:
        _, errors = one.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        one.send_signal(signal.SIGKILL)
        one.communicate()
        found = newest_checkpoint(out)
        return 0 if found is None else last_step(out) - int(found.name.removeprefix("step-"))
    if one.returncode != 0:
        raise SystemExit(f"a resume failed: {errors.decode()}")
    return None


def weights(out: Path) -> dict[str, torch.Tensor]:
    folder = newest_checkpoint(out)
    assert folder is not None
    files = [read_tensors(folder / f"{name}.safetensors") for name in ("model", "optimizer")]
    return {name: value for file in files for name, value in file.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--steps", type=int, default=1500)
    options.add_argument("--every", type=int, default=50)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as work:
        whole = Path(work) / "whole"
        seconds = finish(whole, given.steps, given.every)
        start = finish(whole, given.steps, given.every)  # done already: what a process needs itself
        longest = start + 2 * max(0.0, seconds - start) / given.kills
        repeated: list[int] = []
        equal, runs = True, 0
        while len(repeated) < given.kills:  # a run that ends before the last kill is followed up
            broken, runs = Path(work) / f"broken{runs}", runs + 1
            while len(repeated) < given.kills:
                # From before the first import is done to well into the run.
                after = draw.uniform(0.0, longest)
                steps = kill_once(broken, given.steps, given.every, after)
                if steps is None:
                    break
                repeated.append(steps)
            finish(broken, given.steps, given.every)
            one, other = weights(whole), weights(broken)
            same = one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
            equal = equal and same
    print(
        json.dumps(
            {
                "figure": "kill -9 at random moments of a run",
                "kills": len(repeated),
                "runs": runs,
                "checkpoint_every": given.every,
                "most_steps_repeated": max(repeated, default=0),
                "steps_repeated": repeated,
                "bitwise_equal": equal,
            }
        )
    )


if __name__ == "__main__":
    main()
