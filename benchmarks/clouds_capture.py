"""Seconds and memory of capturing clouds against bare forward passes without the head.

    python benchmarks/clouds_capture.py [--windows 2] [--length 1024] [--budget 120]

The text is the English of Python's documentation, cut into windows; one window a pass in both arms.
Prints JSON rows: the ratio, round by round, and the peak memory of the process.
"""

import argparse
import json
import resource

import torch

import tokendepth
from rows import ratios, row
from tokendepth.measure.capture import capture
from tokendepth.measure.clouds import capture_clouds
from tokendepth.text.corpora import open_corpus
from tokendepth.text.documents import tokenize_all, windows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--budget", type=float, default=120.0)
    options = parser.parse_args()
    loaded = tokendepth.load("smollm2")
    view = loaded.view
    text = open_corpus(["pydoc"]).part("all")
    cut = list(windows(tokenize_all(text, loaded.tokenizer), options.length))[: options.windows]

    def bare() -> None:
        with torch.no_grad():
            for window in cut:
                capture(view, torch.tensor([window.ids]), states=(view.num_layers,))

    def clouds() -> None:
        capture_clouds(view, cut, max_points=20_000)

    figure = f"clouds over bare forward passes, {options.windows} windows of {options.length}"
    row(figure, ratios({"clouds": clouds, "bare": bare}, options.budget))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"figure": "peak memory of the process", "mb": round(peak)}))


if __name__ == "__main__":
    main()
