"""A bar on standard error, with a rate and the time left."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Rate(ProgressColumn):
    """Units per second, once there is a rate."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.3g}/s,")


@contextmanager
def progress(console: Console, verb: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that disappears when done; gives what to tell (done, in all)."""
    with progress_of(console, {"": (verb, unit)}) as tell:
        yield lambda done, total: tell("", done, total)


@contextmanager
def progress_of(
    console: Console, stages: Mapping[str, tuple[str, str]]
) -> Iterator[Callable[[str, int, int], None]]:
    """One bar for work in stages, each with a rate of its own.

    Args:
        console: of standard error.
        stages: verb and unit of each.

    Yields:
        What to tell (stage, done, in all).
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        _Rate(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        first = next(iter(stages))
        tasks = {
            stage: bar.add_task(verb, total=None, unit=unit, visible=stage == first)
            for stage, (verb, unit) in stages.items()
        }

        def tell(stage: str, done: int, total: int) -> None:
            for name, task in tasks.items():
                if name == stage:
                    if not bar.tasks[task].visible:  # its rate counts from here
                        bar.reset(task)
                    bar.update(task, completed=done, total=total, visible=True)
                else:
                    bar.update(task, visible=False)

        yield tell
