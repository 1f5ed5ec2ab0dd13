"""The package as a whole: cheap to import, complete, and in small pieces."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tokendepth

SOURCE = Path(tokendepth.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MAX_LINES, MAX_BODY = 400, 60


def _python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_loads_nothing_heavy() -> None:
    heavy = (
        "torch",
        "transformers",
        "matplotlib",
        "numpy",
        "scipy",
        "rich",
        "tokenizers",
        "gguf",
        "numba",
    )
    code = f"import sys, tokendepth; print([name for name in {heavy} if name in sys.modules])"
    assert _python(code).strip() == "[]"


def test_the_version_needs_no_torch() -> None:
    code = (
        "import sys\nfrom tokendepth.cli.main import main\n"
        "assert main(['--version']) == 0\nassert 'transformers' not in sys.modules"
    )
    assert _python(code) == f"tokendepth {tokendepth.__version__}\n"


@pytest.mark.parametrize("name", tokendepth.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(tokendepth, name)
    assert value is not None
    assert name in dir(tokendepth)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'tokendepth' has no attribute 'nothing'"):
        _ = tokendepth.nothing


def test_an_unknown_rule_in_python_is_a_value_error() -> None:
    code = (
        "import tokendepth\n"
        "try:\n    tokendepth.map('the king', 'none', rule='kl')\n"
        "except ValueError as error:\n    print(error)\n"
    )
    assert _python(code).startswith("rule: got 'kl'; allowed are kl_last")


def test_listing_names_models_and_rules(capsys: pytest.CaptureFixture[str]) -> None:
    from tokendepth.cli.main import main

    assert main(["list"]) == 0
    out = capsys.readouterr().out
    last = json.loads(out.splitlines()[-1])
    assert last["models"] == ["smollm2"]
    assert {"dense_tiny", "dense_shakespeare"} <= set(last["recipes"])
    assert {"pydoc", "tinyshakespeare"} <= set(last["corpora"])
    assert last["rules"] == ["kl_last", "kl_previous", "argmax", "state"]
    assert "SmolLM2-135M-Instruct" in out


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_are_small(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, functions):
            length = node.end_lineno - node.body[0].lineno + 1
            assert length <= MAX_BODY, f"{path.name}: {node.name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_command_line_prints(path: Path) -> None:
    calls = [
        node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    ]
    prints = any(isinstance(call, ast.Name) and call.id == "print" for call in calls)
    assert not prints or path.parent.name == "cli"
