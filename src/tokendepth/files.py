"""Files: written so that a crash or a full disk never leaves half of one, checked, and cached."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from tokendepth.errors import DamagedError, FetchError


def cache_folder() -> Path:
    """`$TOKENDEPTH_CACHE`, else the user's cache folder of this platform."""
    given = os.environ.get("TOKENDEPTH_CACHE")
    return Path(given).expanduser() if given else user_cache_path("tokendepth")


def check_sha256(file: Path, expected: str) -> None:
    """Raise a `FetchError` when the content of a file is not the one with this hash."""
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != expected:
        raise FetchError(
            f"{file}: damaged or not the file that was asked for; its sha256 is {found}, it should "
            f"be {expected}. Remove it and run again."
        )


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


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rename(old: Path, new: Path) -> None:
    """Give a file or folder another name, at once or not at all."""
    old.rename(new)


def read_json(file: Path, what: str) -> dict[str, Any]:
    """An object from a JSON file.

    Raises:
        ValueError: no such file.
        DamagedError: it is cut or no JSON object.
    """
    if not file.is_file():
        raise ValueError(f"{what}: there is no {file}")
    try:
        given = json.loads(file.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DamagedError(f"{file} is damaged: {error}. Take another copy of it.") from error
    if not isinstance(given, dict):
        raise DamagedError(f"{file} is damaged: it holds no object")
    return given


def without_format(given: dict[str, Any], known: int, what: str) -> dict[str, Any]:
    """The object without its format.

    Raises:
        ValueError: no format, or a newer one.
    """
    if not isinstance(given.get("format"), int):
        raise ValueError(f"{what}: format is missing; it was not written by tokendepth")
    if given["format"] > known:
        raise ValueError(
            f"{what}: format {given['format']} is newer than {known}, the newest that this "
            "version reads; update tokendepth"
        )
    return {name: value for name, value in given.items() if name != "format"}
