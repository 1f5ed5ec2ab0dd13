"""Results are written whole or not at all."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokendepth.files import check_writable, write_aside


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_is_written_as_utf8_with_plain_line_ends(tmp_path: Path) -> None:
    write_aside(tmp_path / "a.txt", ["naïve\n", "🙂\r\n"])
    assert (tmp_path / "a.txt").read_bytes() == "naïve\n🙂\r\n".encode()
    assert _names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_the_old_file_stays_when_writing_fails(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def parts() -> Iterator[str]:
        yield "new" * 100_000
        raise error

    with pytest.raises(type(error)):
        write_aside(path, parts())
    assert path.read_text() == "old"
    assert _names(tmp_path) == ["a.txt"], "no half-written file beside it"


def test_the_old_file_stays_when_it_cannot_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="broken"):
        write_aside(path, ["new"])
    assert path.read_text() == "old"
    assert _names(tmp_path) == ["a.txt"]


def test_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write_aside(tmp_path / "none" / "a.txt", ["new"])


def test_paths_are_checked_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path / "a.html", "html")
    with pytest.raises(ValueError, match="^html: .* is a folder; name a file"):
        check_writable(tmp_path, "html")
    with pytest.raises(ValueError, match="^jsonl: the folder .*none does not exist"):
        check_writable(tmp_path / "none" / "a.jsonl", "jsonl")
    monkeypatch.setattr(os, "access", lambda *args: False)
    with pytest.raises(ValueError, match="^html: the folder .* cannot be written"):
        check_writable(tmp_path / "a.html", "html")
