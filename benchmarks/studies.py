"""The studies of docs/token-selective.md, as rows that can be added one by one.

    python benchmarks/studies.py run shakespeare_small --seeds 0 1 2 --threads 1
    python benchmarks/studies.py table shakespeare_small

Each arm and seed is trained by the product's own loop, scored on the whole validation part, and
appended as one line of JSON to benchmarks/results/STUDY.jsonl. What has a row is not done again; a
run that was stopped goes on where it was saved. An arm whose settings have changed makes another
row, and the table shows those of today's settings.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from study_arms import STUDIES, Arm
from study_rows import FOLDER, add_row, found, read_rows, row_key, trained_key, with_changes
from study_scores import figures
from study_table import table
from tokendepth import __version__
from tokendepth.training.recipe import changed, parse_changes
from tokendepth.training.train import TrainOptions, resume, train


def trained(arm: Arm, seed: int, folder: Path) -> dict[str, Any]:
    """Train an arm, or go on with it."""
    options = TrainOptions(say=print)
    if folder.exists():
        made = resume(folder, options=options)
    else:
        made = train(changed(arm.recipe, {"seed": seed}), arm.data, folder, options=options)
    seconds = [row["seconds"] for row in made.rows if "seconds" in row]
    return {"steps": made.steps, "train_seconds": round(sum(seconds), 1)}


def run(study: str, arms: Sequence[Arm], seeds: Sequence[int], given: argparse.Namespace) -> None:
    """Each seed of each arm that has no row yet; all arms of a seed before the next seed."""
    file = given.results / f"{study}.jsonl"
    runs: Path = given.runs / study
    runs.mkdir(parents=True, exist_ok=True)
    given.results.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for arm in arms:
            key = row_key(arm, given.limit)
            if found(read_rows(file), key, seed) is not None:
                print(f"{study}: {arm.name}, seed {seed}: has a row")
                continue
            named = arm.name.replace(" ", "_").replace(",", "")
            folder = runs / f"{named}-seed{seed}-{trained_key(arm)}"
            told = trained(arm, seed, folder)
            began = time.perf_counter()
            row = {
                "study": study,
                "arm": arm.name,
                "seed": seed,
                "key": key,
                "recipe": arm.recipe.recipe,
                "changes": list(arm.recipe.changes),
                "data": arm.data,
                "limit": given.limit,
                **told,
                **figures(arm, folder, given.limit),
                "score_seconds": round(time.perf_counter() - began, 1),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "tokendepth": __version__,
            }
            add_row(file, row, runs / "rows.lock")
            print(f"{study}: {arm.name}, seed {seed}: {json.dumps(row['routings'])[:200]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("do", choices=("run", "table"))
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--arms", nargs="+", help="by name; all unless given")
    parser.add_argument("--seeds", nargs="+", type=int, help="the study's own unless given")
    parser.add_argument("--runs", type=Path, default=Path("runs/studies"), help="where runs lie")
    parser.add_argument("--results", type=Path, default=FOLDER, help="where rows lie")
    parser.add_argument("--threads", type=int, help="of torch; its own choice unless given")
    parser.add_argument("--limit", type=int, help="score so many tokens alone, to try it")
    parser.add_argument("--set", nargs="+", default=[], help="more fields of every recipe")
    given = parser.parse_args()
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    study = STUDIES[given.study]()
    changes = parse_changes(given.set)
    arms = [with_changes(one, changes) for one in study.arms]
    for name in given.arms or ():
        if name not in [one.name for one in arms]:
            known = ", ".join(repr(one.name) for one in arms)
            parser.error(f"--arms: got {name!r}; {given.study} has {known}")
    if given.arms:
        arms = [one for one in arms if one.name in given.arms]
    if given.do == "table":
        rows = read_rows(given.results / f"{given.study}.jsonl")
        print(table(arms, rows, study.published, given.limit))
    else:
        run(given.study, arms, given.seeds or study.seeds, given)


if __name__ == "__main__":
    main()
