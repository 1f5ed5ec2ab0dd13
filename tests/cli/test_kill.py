"""A run that is killed with no warning goes on; twenty kills are in `benchmarks/kills.py`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = Path(__file__).parents[2] / "benchmarks" / "kills.py"


def kills(*options):
    done = subprocess.run(
        [sys.executable, KILLS, *map(str, options)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_two_kills():
    found = kills("--kills", 2, "--steps", 120, "--every", 10)
    assert found["bitwise_equal"]
    assert found["most_steps_repeated"] <= 10


@pytest.mark.slow
def test_twenty_kills():
    found = kills("--kills", 20)
    assert found["kills"] == 20
    assert found["bitwise_equal"]
    assert found["most_steps_repeated"] <= 50
