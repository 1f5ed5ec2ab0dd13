"""The table of a study: losses, what they cost, and differences from the first arm by seed."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np

from study_arms import Arm
from study_rows import row_key

STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""97.5 % quantile of Student's t by the number of values: 95 % intervals of a mean."""
Lines = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Name of a line to seed to figures."""


def table(
    arms: Sequence[Arm],
    rows: Sequence[Mapping[str, Any]],
    published: Mapping[str, str],
    limit: int | None,
) -> str:
    """Markdown: a line an arm and routing, other value of its policy, or control.

    Differences are from the first line at the same seed, in per cent of its loss: their mean over
    seeds, and the 95 % interval by Student's t, or the range where there are two.
    """
    lines: dict[str, dict[int, Mapping[str, Any]]] = {}
    for arm in arms:
        key = row_key(arm, limit)
        for row in rows:
            if row["key"] == key:
                for name, one in _lines(row):
                    lines.setdefault(name, {})[row["seed"]] = one
    if not lines:
        return "no rows of these settings"
    lines |= _at_equal_flops(lines)
    base = lines[next(iter(lines))]
    head = (
        "| arm | seeds | loss | against the first, % | accuracy | share | FLOPs | alpha | p > 0.5 "
        "| published |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *(_line(name, lines[name], base, published) for name in lines)])


def _lines(row: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    names = sorted(row["routings"], key=lambda name: name != "hard")
    for name in names:
        yield row["arm"] if name == names[0] else f"{row['arm']} ({name})", row["routings"][name]
    for one in row["sweep"]:
        yield f"{row['arm']} ({one['rule']} > {one['threshold']})", one
    for name, one in row["controls"].items():
        yield f"{row['arm']}: {name}", one


def _at_equal_flops(lines: Lines) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Early exit between two of its thresholds, at the FLOPs of each learned selection."""
    made: dict[str, dict[int, Mapping[str, Any]]] = {}
    for target in ("tsa", "tsa 0.6"):
        for rule in ("confidence", "margin", "entropy"):
            swept = [lines[name] for name in lines if f"({rule} >" in name]
            for seed, wanted in lines.get(target, {}).items():
                points = [each[seed] for each in swept if seed in each]
                if _reaches(points, wanted):
                    name = f"early exit ({rule}) at the FLOPs of {target}"
                    made.setdefault(name, {})[seed] = _between(points, wanted)
    return made


def _reaches(points: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]) -> bool:
    """Whether the thresholds that were swept lie on both sides."""
    at = [one["flops_per_token"] for one in points]
    return len(at) > 1 and min(at) <= wanted["flops_per_token"] <= max(at)


def _between(points: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]) -> dict[str, Any]:
    points = sorted(points, key=lambda one: one["flops_per_token"])
    at = [one["flops_per_token"] for one in points]
    made = {
        name: float(np.interp(wanted["flops_per_token"], at, [one[name] for one in points]))
        for name in ("loss", "accuracy", "executed_share", "flops_per_token")
    }
    return {**made, "dense_flops_per_token": points[0]["dense_flops_per_token"]}


def _line(
    name: str,
    line: Mapping[int, Mapping[str, Any]],
    base: Mapping[int, Mapping[str, Any]],
    published: Mapping[str, str],
) -> str:
    ones = list(line.values())
    paired = [
        100.0 * (line[seed]["loss"] / base[seed]["loss"] - 1.0) for seed in line if seed in base
    ]
    dense = [one["dense_flops_per_token"] for one in base.values()]
    cells = [
        name,
        str(len(ones)),
        _mean(ones, "loss", 4),
        _interval(paired),
        _mean(ones, "accuracy", 4),
        _mean(ones, "executed_share", 3),
        f"{mean(one['flops_per_token'] for one in ones) / mean(dense):.3f}",
        _mean(ones, "alpha", 3),
        _mean(ones, "share_above_half", 3),
        published.get(name, ""),
    ]
    return "| " + " | ".join(cells) + " |"


def _mean(ones: Sequence[Mapping[str, Any]], name: str, digits: int) -> str:
    return f"{mean(one[name] for one in ones):.{digits}f}" if name in ones[0] else ""


def _interval(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:+.2f}" if values else ""
    if len(values) not in STUDENT or len(values) == 2:
        return f"{mean(values):+.2f} [{min(values):+.2f}, {max(values):+.2f}]"
    half = STUDENT[len(values)] * stdev(values) / len(values) ** 0.5
    return f"{mean(values):+.2f} [{mean(values) - half:+.2f}, {mean(values) + half:+.2f}]"
