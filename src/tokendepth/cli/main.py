"""The `tokendepth` command: parse, call, print, and turn errors into exit codes.

0 done, 2 wrong use, 1 failed (disk, download, network, NaN), 130 interrupted. The last line on
standard output is one JSON object; progress and errors go to standard error.
"""

import io
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from tokendepth import __version__
from tokendepth.cli.benchmark import BenchmarkCommand
from tokendepth.cli.compare import CompareCommand
from tokendepth.cli.convergence import ConvergenceCommand
from tokendepth.cli.evaluate import EvaluateCommand
from tokendepth.cli.generate import GenerateCommand
from tokendepth.cli.list import ListCommand
from tokendepth.cli.map import MapCommand
from tokendepth.cli.retrofit import RetrofitCommand
from tokendepth.cli.train import TrainCommand
from tokendepth.cli.transport import TransportCommand

Command = (
    Annotated[MapCommand, tyro.conf.subcommand("map")]
    | Annotated[TrainCommand, tyro.conf.subcommand("train")]
    | Annotated[RetrofitCommand, tyro.conf.subcommand("retrofit")]
    | Annotated[GenerateCommand, tyro.conf.subcommand("generate")]
    | Annotated[EvaluateCommand, tyro.conf.subcommand("evaluate")]
    | Annotated[BenchmarkCommand, tyro.conf.subcommand("benchmark")]
    | Annotated[CompareCommand, tyro.conf.subcommand("compare")]
    | Annotated[TransportCommand, tyro.conf.subcommand("transport")]
    | Annotated[ConvergenceCommand, tyro.conf.subcommand("convergence")]
    | Annotated[ListCommand, tyro.conf.subcommand("list")]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program's name; the process's own by default.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"tokendepth {__version__}")
        return 0
    try:
        _check_once(given)
    except ValueError as error:
        return _say(error, code=2)
    command = tyro.cli(
        Command,
        prog="tokendepth",
        description="Transformers whose depth is decided per token: measure, train, run.",
        args=given,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    try:
        return command.run()
    except ValueError as error:
        return _say(error, code=2)
    except (OSError, ArithmeticError, RuntimeError, MemoryError) as error:
        return _say(error, code=1)
    except KeyboardInterrupt:
        print("interrupted; what had been saved until then is kept", file=sys.stderr)
        return 130


def _check_once(arguments: Sequence[str]) -> None:
    """Raise a `ValueError` for an option that is there twice: the parser would lose the first."""
    names = [
        one.partition("=")[0].replace("_", "-") for one in arguments if re.match("--[a-z]", one)
    ]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"{twice[0].removeprefix('--')}: given twice; give it once, with all its values behind "
            "it: --set window=64 batch=8"
        )


def _say(error: BaseException, code: int) -> int:
    print(f"error: {error or type(error).__name__}", file=sys.stderr)
    return code


def entry() -> None:
    """What the installed `tokendepth` script calls."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a console that lacks a character shows a mark
        sys.stdout.reconfigure(errors="replace")
    sys.path.append("")  # so that a recipe or policy of one's own is found in the working folder
    sys.exit(main())
