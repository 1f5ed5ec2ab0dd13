"""Write a result so that a crash or a full disk never leaves half a file."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write_aside(path: Path, parts: Iterable[str]) -> None:
    """Write UTF-8 text to a temporary file beside `path`, then put it in place.

    Raises:
        OSError: the folder is missing or full; an existing file is then unchanged.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    aside = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(parts)
        aside.chmod(0o644)
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OSError(
            f"{path}: could not be written: {error}. Make room or name another place; an earlier "
            "file of that name is unchanged."
        ) from error
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def check_writable(path: Path, option: str) -> None:
    """Raise a `ValueError` when `path` cannot be written, before any work is done."""
    if path.is_dir():
        raise ValueError(f"{option}: {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise ValueError(f"{option}: the folder {path.parent} does not exist; make it first")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{option}: the folder {path.parent} cannot be written")
