"""Named texts: looked for in `$TOKENDEPTH_DATA`, then in the cache, then at their public address.

The hash of a file is checked wherever it came from. Of one file, the training part of WikiText-2,
no independent copy was at hand when this was written, so its hash is not known here: it is checked
by how it must begin, and the hash that was found is kept beside it and compared from then on.
"""

import hashlib
import io
import os
import shutil
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from tokendepth.errors import FetchError
from tokendepth.files import cache_folder, check_sha256, write_aside
from tokendepth.text.documents import read_text


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """One file of a named text."""

    name: str
    """In the folders where it is looked for."""
    address: str
    sha256: str | None
    """Of the text; None where it is not known."""
    beginning: str = ""
    """With which it must begin."""
    member: str = ""
    """In the archive at the address; empty where the address is the text itself."""
    megabytes: float = 1.0
    """To fetch."""


@dataclass(frozen=True, kw_only=True)
class NamedText:
    """A text by name: one file, or a file each for train, validation and test."""

    what: str
    files: tuple[TextFile, ...]
    sizes: tuple[int, ...] = ()
    """Characters of train and validation, where they are agreed on; the rest is the test part."""


_CHAR_RNN = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"
_EXAMPLES = (
    "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/"
)
NAMED_TEXTS = {
    "tinyshakespeare": NamedText(
        what="Shakespeare, 1.1 million characters",
        files=(
            TextFile(
                name="tinyshakespeare_input.txt",
                address=_CHAR_RNN + "input.txt",
                sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            ),
        ),
    ),
    "wikitext2": NamedText(
        what="WikiText-2, tokenised, in its own parts",
        files=(
            TextFile(
                name="wikitext2_train.txt",
                address=_EXAMPLES + "train.txt",
                sha256=None,
                beginning=" \n = Valkyria Chronicles III = \n",
                megabytes=11.0,
            ),
            TextFile(
                name="wikitext2_valid.txt",
                address=_EXAMPLES + "valid.txt",
                sha256="f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
            ),
            TextFile(
                name="wikitext2_test.txt",
                address=_EXAMPLES + "test.txt",
                sha256="d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
            ),
        ),
    ),
    "enwik8": NamedText(
        what="100 million bytes of Wikipedia, decoded: 90 and 5 million characters, and the rest",
        files=(
            TextFile(
                name="enwik8",
                address="https://mattmahoney.net/dc/enwik8.zip",
                sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
                member="enwik8",
                megabytes=36.0,
            ),
        ),
        sizes=(90_000_000, 5_000_000),
    ),
}


def fetched(file: TextFile, say: Callable[[str], None] = lambda _: None) -> str:
    """The text of a file, fetched once if need be.

    Args:
        file: which.
        say: told in words what is being fetched.

    Raises:
        FetchError: it is nowhere, or what is there is another file.
    """
    kept = cache_folder() / "texts" / file.name
    for place in (*_given_places(file), kept):
        if place.is_file():
            return _checked(file, place)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{file.name}-", dir=kept.parent) as work:
            got = Path(work) / file.name
            say(f"fetching {file.name} from {file.address} ({file.megabytes:g} MB, once)")
            _download(file, got)
            text = _checked(file, got)
            got.replace(kept)
    except (OSError, HTTPException, zipfile.BadZipFile, KeyError) as error:
        if isinstance(error, HTTPError):
            error.close()
        places = ", ".join(str(place) for place in (*_given_places(file), kept))
        raise FetchError(
            f"{file.name} is neither at {places} nor could it be fetched from {file.address}: "
            f"{error}\nWays out: connect to the network and run again; or get the file elsewhere "
            f"and put it into the folder that $TOKENDEPTH_DATA names; or name any text of your own."
        ) from error
    if file.sha256 is None:
        found = hashlib.sha256(kept.read_bytes()).hexdigest()
        write_aside(kept.with_name(kept.name + ".sha256"), [found + "\n"])
    return text


def _given_places(file: TextFile) -> tuple[Path, ...]:
    given = os.environ.get("TOKENDEPTH_DATA")
    if not given:
        return ()
    folder = Path(given).expanduser()
    return folder / file.name, folder / "text" / file.name


def _checked(file: TextFile, place: Path) -> str:
    known = file.sha256
    if known is None and (noted := place.with_name(place.name + ".sha256")).is_file():
        known = noted.read_text().strip()
    if known is not None:
        check_sha256(place, known)
    text = read_text(place)
    if not text.startswith(file.beginning):
        raise FetchError(
            f"{place}: damaged or not the file that was asked for: it must begin with "
            f"{file.beginning!r}. Remove it and run again."
        )
    return text


def _download(file: TextFile, into: Path) -> None:
    with urllib.request.urlopen(file.address, timeout=60) as answer:
        if not file.member:
            with into.open("wb") as stream:
                shutil.copyfileobj(answer, stream)
            announced, got = answer.headers.get("Content-Length"), into.stat().st_size
            if announced is not None and int(announced) != got:
                raise OSError(f"the connection ended after {got} of {announced} bytes")
            return
        archive = zipfile.ZipFile(io.BytesIO(answer.read()))
    with archive.open(file.member) as member, into.open("wb") as stream:
        shutil.copyfileobj(member, stream)
