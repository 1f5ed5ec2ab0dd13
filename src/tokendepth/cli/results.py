"""What commands that give a result have in common at their end."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tokendepth.files import check_writable

if TYPE_CHECKING:
    from tokendepth.result import Result


def check_outputs(html: Path | None, json_file: Path | None) -> None:
    """Raise a `ValueError` when a file cannot be written, before any work is done."""
    for path, option in ((html, "html"), (json_file, "json")):
        if path is not None:
            check_writable(path.expanduser().resolve(), option)
    if html is not None and html == json_file:
        raise ValueError(f"json: {html} is the page's name too; give --json another name")


def finish(result: "Result", html: Path | None, json_file: Path | None, **more: str) -> None:
    """Print the table, write what was asked for, and end with one line of JSON."""
    console = Console(highlight=False)
    console.print(result.table())
    written = dict(more)
    if html is not None:
        result.write_html(html.expanduser().resolve())
        written["html"] = str(html.expanduser().resolve())
    if json_file is not None:
        result.write_json(json_file.expanduser().resolve())
        written["json"] = str(json_file.expanduser().resolve())
    print(json.dumps({**result.summary(), **written}, allow_nan=False))
