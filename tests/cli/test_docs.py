"""Code in the documentation runs as it stands, and every field of a result is in the glossary."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tokendepth
from tests.unit.test_compare import OPTIONS, entrants
from tests.unit.test_evaluate import evaluate
from tokendepth.comparison.compare import compare_entrants
from tokendepth.engine.benchmark import synthetic

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {
    "baselines.md": "damped by ",
    "extending.md": "executed share 0.",
    "families.md": "gap ",
    "generation.md": "deepest [2, 5, 4]",
    "ledger.md": "{'query': ",
}


def test_every_page_with_python_is_run():
    assert {page.name for page in DOCS.glob("*.md") if BLOCK.search(page.read_text())} == set(PAGES)


@pytest.mark.parametrize(("page", "says"), PAGES.items())
def test_the_code_of_a_page_runs(page, says, tmp_path):
    (block,) = BLOCK.findall((DOCS / page).read_text())
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(says)


def test_a_policy_of_ones_own_takes_sixty_lines_at_most():
    (block,) = BLOCK.findall((DOCS / "extending.md").read_text())
    assert len(block.splitlines()) <= 60


def test_every_field_of_a_result_is_in_the_glossary(llama, monkeypatch):
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    named = set(re.findall(r"`(\w+)`", (DOCS / "glossary.md").read_text()))
    torch.set_num_threads(1)
    loaded = tokendepth.Loaded(title="t", model=synthetic(16, 2, 31, 0), tokenizer=None)
    results = [
        evaluate(llama),
        compare_entrants(entrants(llama), OPTIONS, data="text"),
        tokendepth.benchmark(
            loaded, phase=("prefill",), batch=(1,), length=4, seconds=0.01, alpha=(0.1, 0.9)
        ),
    ]
    fields = set()
    for result in results:
        summary = result.summary()
        fields |= set(summary)
        for rows in ("rows", "differences"):
            for row in summary.get(rows, ()):
                fields |= set(row)
    assert fields <= named, sorted(fields - named)
