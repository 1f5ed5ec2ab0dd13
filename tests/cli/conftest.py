"""What tests of commands share."""

from collections.abc import Callable

import pytest

from tokendepth.cli.main import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command: its exit code, what it wrote, and what it said, in one line of words."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(one) for one in arguments])
        out, err = capsys.readouterr()
        return code, out, " ".join(err.split())

    return call
