"""Parts that do not overlap, files and patterns, and named texts from a local server."""

import hashlib
import http.server
import io
import threading
import zipfile

import pytest

from tokendepth.errors import FetchError
from tokendepth.text import corpora, fetch
from tokendepth.text.corpora import CORPORA, Split, cut, file_texts, open_corpus, open_part
from tokendepth.text.fetch import NAMED_TEXTS, NamedText, TextFile, fetched

SONG = "Who is Silvia? What is she,\nThat all our swains commend her?\n"


def sha256(raw):
    return hashlib.sha256(raw).hexdigest()


@pytest.fixture
def server(tmp_path):
    """A folder, and the address at which it is served."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given):
            super().__init__(*given, directory=str(folder))

        def log_message(self, *given):
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{served.server_address[1]}/"
    served.shutdown()
    served.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def places(request, tmp_path, monkeypatch):
    if "given_data" in request.fixturenames:  # read before the variable is taken away
        request.getfixturevalue("given_data")
    monkeypatch.setenv("TOKENDEPTH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TOKENDEPTH_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def text_file(base, **changes):
    given = {"name": "song.txt", "address": base + "song.txt", "sha256": sha256(SONG.encode())}
    return TextFile(**(given | changes))


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.9, 0.1, 0.0), (1 / 3, 1 / 3, 1 / 3)])
@pytest.mark.parametrize("length", [1, 7, 99, 100])
def test_parts_join_to_the_text(shares, length):
    text = "".join(chr(97 + number % 26) for number in range(length))
    train, validation, test = cut(
        text, Split(train=shares[0], validation=shares[1], test=shares[2])
    )
    assert train + validation + test == text
    assert len(train) == round(length * shares[0])
    assert (test == "") or shares[2] > 0


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.2), (1.2, -0.1, -0.1), (0.0, 0.5, 0.5)])
def test_a_split_that_is_none(shares):
    with pytest.raises(ValueError, match="split: "):
        Split(train=shares[0], validation=shares[1], test=shares[2])


def test_pydoc_is_there_and_has_a_fingerprint():
    one, other = open_corpus(["pydoc"]), open_corpus(["pydoc"], Split(train=0.9, test=0.0))
    assert len(one.part("all")) > 400_000
    assert one.part("all") == other.part("all")
    assert one.fingerprint == open_corpus(["pydoc"]).fingerprint != other.fingerprint
    assert open_part(["pydoc"], "test") == one.test


def test_files_and_patterns(places):
    for name, text in (("b.txt", "bee"), ("a.txt", "ay"), ("c.md", "sea")):
        (places / name).write_text(text)
    assert file_texts(["*.txt", "c.md"]) == [("a.txt", "ay"), ("b.txt", "bee"), ("c.md", "sea")]
    assert [text for _, text in file_texts([str(places / "?.txt")])] == ["ay", "bee"]
    corpus = open_corpus(["b.txt", "a.txt"])
    assert corpus.part("all") == "beeay"
    with pytest.raises(ValueError, match="no file fits 'z"):
        file_texts(["z*"])
    with pytest.raises(ValueError, match=r"file: .*a\.txt is named twice"):
        open_corpus(["*.txt", str(places / "a.txt")])


def test_a_file_named_as_a_corpus_is_the_file(places):
    (places / "pydoc").write_text("mine, all mine")
    assert open_corpus(["pydoc"]).part("all") == "mine, all mine"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "data: got none"),
        (["tinyshakespear"], "neither a file here nor.*did you mean tinyshakespeare"),
        (["pydoc", "tinyshakespeare"], "'pydoc', which is neither a file"),
    ],
)
def test_what_is_no_corpus_is_named(data, said):
    with pytest.raises(ValueError, match=said):
        open_corpus(data)


def test_fetched_once_then_kept(server, places):
    folder, address = server
    (folder / "song.txt").write_text(SONG)
    said = []
    assert fetched(text_file(address), said.append) == SONG
    (folder / "song.txt").unlink()
    assert fetched(text_file(address), said.append) == SONG
    assert len(said) == 1
    assert [one.name for one in (places / "cache" / "texts").iterdir()] == ["song.txt"]


def test_from_an_archive(server):
    folder, address = server
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("inside", SONG)
    (folder / "song.zip").write_bytes(raw.getvalue())
    file = text_file(address, address=address + "song.zip", member="inside")
    assert fetched(file) == SONG
    with pytest.raises(FetchError, match="nowhere"):
        fetched(text_file(address, name="other", address=address + "song.zip", member="nowhere"))


@pytest.mark.parametrize("where", ["song.txt", "text/song.txt"])
def test_the_users_own_folder_comes_first(server, places, monkeypatch, where):
    _, address = server
    (places / "data" / "text").mkdir(parents=True)
    (places / "data" / where).write_text(SONG)
    monkeypatch.setenv("TOKENDEPTH_DATA", str(places / "data"))
    assert fetched(text_file(address)) == SONG
    (places / "data" / where).write_text(SONG + "more")
    with pytest.raises(FetchError, match=rf"{where}: damaged or not the file"):
        fetched(text_file(address))


def test_a_failure_names_all_three_places(server, places, monkeypatch):
    _, address = server
    monkeypatch.setenv("TOKENDEPTH_DATA", str(places / "data"))
    with pytest.raises(FetchError) as caught:
        fetched(text_file(address))
    for word in (
        str(places / "data"),
        str(places / "cache" / "texts"),
        address + "song.txt",
        "404",
    ):
        assert word in str(caught.value)
    assert not list((places / "cache" / "texts").iterdir())


def test_what_is_fetched_is_checked_and_not_kept(server, places):
    folder, address = server
    (folder / "song.txt").write_text(SONG[:-5])
    with pytest.raises(FetchError, match="sha256 is"):
        fetched(text_file(address))
    assert not list((places / "cache" / "texts").iterdir())


def test_without_a_known_hash_the_first_one_found_is_kept(server, places):
    folder, address = server
    (folder / "song.txt").write_text("Another song")
    unknown = text_file(address, sha256=None, beginning="Who is")
    with pytest.raises(FetchError, match="must begin with 'Who is'"):
        fetched(unknown)
    (folder / "song.txt").write_text(SONG)
    assert fetched(unknown) == SONG
    (places / "cache" / "texts" / "song.txt").write_text(SONG + "more")
    with pytest.raises(FetchError, match="sha256 is"):
        fetched(unknown)


def test_parts_of_their_own_and_agreed_sizes(server, places, monkeypatch):
    folder, address = server
    files = []
    for name, text in (("one", "train\n"), ("two", "valid\n"), ("three", "test\n")):
        (folder / name).write_text(text)
        files.append(TextFile(name=name, address=address + name, sha256=sha256(text.encode())))
    three = NamedText(what="three", files=tuple(files))
    sized = NamedText(what="sized", files=(text_file(address),), sizes=(10, 5))
    (folder / "song.txt").write_text(SONG)
    for name, text in (("three", three), ("sized", sized)):
        monkeypatch.setitem(NAMED_TEXTS, name, text)
        monkeypatch.setitem(CORPORA, name, corpora._named(name))
    (folder / "one").rename(folder / "gone")
    assert open_part(["three"], "validation") == "valid\n"  # the training part is not needed
    (folder / "gone").rename(folder / "one")
    corpus = open_corpus(["three"], Split(train=1.0, validation=0.0, test=0.0))
    assert (corpus.train, corpus.validation, corpus.test) == ("train\n", "valid\n", "test\n")
    corpus = open_corpus(["sized"])
    assert (corpus.train, corpus.validation) == (SONG[:10], SONG[10:15])
    assert corpus.part("all") == SONG


@pytest.mark.parametrize("name", ["tinyshakespeare_input", "wikitext2_valid", "wikitext2_test"])
def test_known_hashes_are_of_the_public_files(name, given_data, monkeypatch):
    """The copies at hand are what the addresses are known to give."""
    if not (given_data / "text" / f"{name}.txt").is_file():
        pytest.skip(f"no data: $TOKENDEPTH_DATA has no text/{name}.txt")
    monkeypatch.setenv("TOKENDEPTH_DATA", str(given_data))
    files = [file for text in NAMED_TEXTS.values() for file in text.files]
    (file,) = [file for file in files if file.name == f"{name}.txt"]
    assert len(fetched(file)) > 1_000_000


def test_a_hub_set_without_the_extra_says_how_to_get_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'tokendepth\[data\]'"):
        open_corpus(["hub:owner/name"])


class FakePart(dict):
    @property
    def column_names(self):
        return list(self)


@pytest.mark.parametrize(
    ("loaded", "name", "expected"),
    [
        ({"train": {"text": ["a", "b\n"]}}, "o/n", ("a\nb\n",)),
        ({"train": {"body": ["a"]}, "valid": {"body": ["b"]}, "test": {"body": ["c"]}}, "o/n#body",
         ("a\n", "b\n", "c\n")),
        ({"train": {"text": ["0123456789" * 2]}, "test": {"text": ["c"]}}, "o/n",
         ("0123456789012345678", "9\n", "c\n")),
    ],
)  # fmt: skip
def test_hub_sets_become_parts(monkeypatch, loaded, name, expected):
    import types

    from tokendepth.text import hub

    asked = []
    fake = types.SimpleNamespace(
        load_dataset=lambda *given: (
            asked.append(given) or {part: FakePart(columns) for part, columns in loaded.items()}
        )
    )
    monkeypatch.setattr(hub, "import_module", lambda _: fake)
    assert hub.hub_parts(name) == expected
    assert asked == [("o/n", None)]
    with pytest.raises(ValueError, match="has no column 'none'"):
        hub.hub_parts("o/n:config#none")
    assert asked[-1] == ("o/n", "config")


def test_a_hub_set_without_a_train_part_is_refused(monkeypatch):
    import types

    from tokendepth.text import hub

    fake = types.SimpleNamespace(load_dataset=lambda *given: {"test": FakePart(text=["a"])})
    monkeypatch.setattr(hub, "import_module", lambda _: fake)
    with pytest.raises(ValueError, match="o/n has no train part; it has test"):
        hub.hub_parts("o/n")


@pytest.mark.parametrize("member", ["", "inside"])
def test_a_connection_that_ends_early_leaves_nothing(tmp_path, places, member):
    class Early(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(SONG.encode())

        def log_message(self, *given):
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Early)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{served.server_address[1]}/"
    unknown = text_file(address, sha256=None, beginning=SONG[:5], member=member)
    with pytest.raises(FetchError, match="neither at .* nor could it be fetched"):
        fetched(unknown)
    assert not list((places / "cache" / "texts").iterdir())
    served.shutdown()
    served.server_close()


def test_the_module_of_fetching_has_no_hash_that_is_made_up():
    unknown = [file.name for text in NAMED_TEXTS.values() for file in text.files if not file.sha256]
    assert unknown == ["wikitext2_train.txt"]
    assert fetch.__doc__ is not None
    assert "not known here" in fetch.__doc__
