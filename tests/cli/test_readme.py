"""What the README tells people to type works. Its two set-up commands are run by `.ci/run`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def blocks(mark: str) -> list[str]:
    """The fenced blocks with exactly this mark."""
    return re.findall(rf"^```{mark}\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def lines() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines()]


def test_the_readme_has_both_set_up_commands_and_more():
    assert [len(blocks(f"sh {name}")) for name in ("quickstart", "tests")] == [1, 1]
    assert len(lines()) >= 3


@pytest.mark.real
@pytest.mark.parametrize("line", lines())
def test_a_line_ends_with_one_json_object(line, tmp_path, smollm2):
    for name in ("README.md", "CONTRIBUTING.md"):
        (tmp_path / name).write_bytes((README.parent / name).read_bytes())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        line, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert isinstance(json.loads(done.stdout.decode().splitlines()[-1]), dict)


@pytest.mark.real
@pytest.mark.parametrize(
    ("number", "last"),
    [(0, "torch.Size([1, 7, 576])"), (1, "torch.Size([1, 13, 30])")],
    ids=["measure", "run"],
)
def test_a_python_block_runs(number, last, tmp_path, smollm2):
    block = blocks("python")[number]
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines()[-1] == last


def test_every_python_block_is_run():
    assert len(blocks("python")) == 2
