"""Packages made to do harm, their ids and hashes right: refused soon, cheaply, and without leaving the folder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.errors import ArtifactError
from reranker.models.manifest import MAX_MANIFEST_BYTES, describe_model, manifest_bytes
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import tensors_of
from reranker.models.tensor_file import _open_regular, chunks_of, tensor_file_name
from tests.unit.small_models import BM25, small_model, small_table

MAX_SECONDS = 1.0
MAX_MANIFEST_BYTES_MORE = 64 * 1024 * 1024
OPENED: list[str] = []
WATCHING = [False]
LEXICAL = BM25.to_json()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if WATCHING[0] and event == "open" and isinstance(arguments[0], str | bytes):
        OPENED.append(os.fsdecode(arguments[0]))


sys.addaudithook(_audit)


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def refused(tmp_path: Path) -> Iterator[Callable[..., ArtifactError]]:
    """Return a function that loads ``tmp_path/model`` and checks how it is refused, and that nothing else changes."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("s")

    def check(match: str | None = None) -> ArtifactError:
        before = surroundings(tmp_path)
        reset_peak()
        low = peak_bytes()
        OPENED.clear()
        WATCHING[0] = True
        start = time.perf_counter()
        try:
            with pytest.raises(ArtifactError, match=match) as caught:
                load_model(tmp_path / "model")
        finally:
            WATCHING[0] = False
        assert time.perf_counter() - start <= MAX_SECONDS
        assert peak_bytes() - low <= MAX_MANIFEST_BYTES_MORE
        assert surroundings(tmp_path) == before
        inside = str(tmp_path / "model") + os.sep
        strangers = [path for path in OPENED if not path.startswith((inside, "/proc/", sys.prefix, sys.base_prefix))]
        assert strangers == []
        assert not (tmp_path / "canary").exists()
        return caught.value

    yield check
    assert not (tmp_path / "canary").exists()


def reset_peak() -> None:
    """Start a new count of the process's peak memory, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"peak memory cannot be measured here: {error}")


def peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    pytest.skip("peak memory cannot be measured here")


def surroundings(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, size and change time of everything below a folder."""
    found = [(path, path.lstat()) for path in sorted(folder.rglob("*"))]
    return [(str(path), status.st_size, status.st_mtime_ns) for path, status in found]


def good_content() -> dict[str, Any]:
    """Return a good manifest without its id."""
    content = dict(small_model().manifest)
    del content["model_id"]
    return json.loads(json.dumps(content))  # type: ignore[no-any-return]


def write_package(tmp_path: Path, tensors: bytes | None = None, **changes: Any) -> Path:
    """Write a package whose ids and hashes are right whatever its content is."""
    folder = tmp_path / "model"
    folder.mkdir()
    content = good_content()
    data = b"".join(chunks_of(tensors_of(small_model()))) if tensors is None else tensors
    sha256 = hashlib.sha256(data).hexdigest()
    (folder / tensor_file_name(sha256)).write_bytes(data)
    content["files"] = {tensor_file_name(sha256): {"sha256": sha256, "bytes": len(data)}}
    content |= changes
    write_manifest(folder, content)
    return folder


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    model_id = hashlib.sha256(manifest_bytes(content)).hexdigest()
    (folder / "manifest.json").write_bytes(manifest_bytes({**content, "model_id": model_id}))


def tensor_bytes(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def good_tensors(**changes: Any) -> bytes:
    return b"".join(chunks_of(tensors_of(small_model()) | changes))


def test_the_builder_of_packages_makes_good_ones(tmp_path: Path) -> None:
    assert load_model(write_package(tmp_path)).model_id == small_model().model_id


def test_pickle_is_never_unpickled(tmp_path: Path, refused: Callable[..., ArtifactError]) -> None:
    write_package(tmp_path, pickle.dumps(Canary(tmp_path / "canary")))
    refused("header")


def test_object_arrays_are_never_unpickled(tmp_path: Path, refused: Callable[..., ArtifactError]) -> None:
    file = io.BytesIO()
    np.save(file, np.array([Canary(tmp_path / "canary")], object), allow_pickle=True)
    write_package(tmp_path, file.getvalue())
    refused("header")


def test_nothing_is_decompressed(tmp_path: Path, refused: Callable[..., ArtifactError]) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
        with bomb.open("tensors", "w", force_zip64=True) as entry:
            for _ in range(64):
                entry.write(bytes(1 << 22))
    write_package(tmp_path, file.getvalue())
    refused("header")


NAMES = {
    "parent": "../outside/secret",
    "encoded parent": "%2e%2e/outside/secret",
    "encoded twice": "%252e%252e%2foutside%2fsecret",
    "absolute": "/etc/hostname",
    "backslashes": "..\\outside\\secret",
    "nul": "tensors\0.safetensors",
    "300 characters": "t" * 300,
    "look-alike dots": "\u2024\u2024/outside/secret",
    "full-width": "\uff0e\uff0e\uff0foutside\uff0fsecret",
    "empty": "",
    "dot": ".",
    "newline": "tensors\n.safetensors",
    "manifest itself": "manifest.json",
    "drive": "C:\\x",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
def test_names_that_lead_elsewhere(name: str, tmp_path: Path, refused: Callable[..., ArtifactError]) -> None:
    secret = hashlib.sha256(b"s").hexdigest()
    write_package(tmp_path, files={name: {"sha256": secret, "bytes": 1}})
    refused("not that of its hash")


@pytest.mark.parametrize(
    "files",
    [{}, [], None, {"a": 1}, {"a": {}, "b": {}}, {"a": {"sha256": "../outside", "bytes": 1}}, {"a": {"sha256": 1}}],
    ids=str,
)
def test_lists_of_files_that_are_none(files: Any, tmp_path: Path, refused: Callable[..., ArtifactError]) -> None:
    write_package(tmp_path, files=files)
    refused()


def test_a_size_that_is_no_number(tmp_path: Path, refused: Callable[..., ArtifactError]) -> None:
    folder = write_package(tmp_path)
    content = good_content()
    for size in (-1, 2**80, True, "1326", None, 1326.0):
        next(iter(content["files"].values()))["bytes"] = size
        write_manifest(folder, content)
        refused()


@pytest.mark.parametrize("start", ["manifest.json", "tensors"])
@pytest.mark.parametrize("kind", ["link", "dangling", "loop", "pipe", "folder", "device"])
def test_files_that_are_none(start: str, kind: str, tmp_path: Path, refused: Callable[..., ArtifactError]) -> None:
    folder = write_package(tmp_path)
    (path,) = folder.glob(f"{start}*")
    moved = tmp_path / "outside" / "moved"
    path.rename(moved)
    if kind == "link":
        path.symlink_to(moved)  # even with the right content: what is behind a link can be exchanged
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    refused("plain file|regular file")


def many_tensors() -> bytes:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return tensor_bytes({f"t{i}": entry for i in range(500_000)})


def entry_of(**changes: Any) -> dict[str, Any]:
    return {"V": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | changes}


HEADERS: dict[str, Callable[[], bytes]] = {
    "500,000 arrays": many_tensors,
    "65 arrays": lambda: tensor_bytes(
        {f"t{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(65)}
    ),
    "33 MB of white space": lambda: tensor_bytes(b"{" + b" " * 33_000_000 + b"}"),
    "length past the end": lambda: (1 << 63).to_bytes(8, "little") + b"{}",
    "length 2**64 - 1": lambda: b"\xff" * 8 + b"{}",
    "no header": lambda: b"",
    "half a length": lambda: b"\x02\0\0",
    "deep": lambda: tensor_bytes(b"[" * 60_000),
    "deep objects": lambda: tensor_bytes(b'{"a":' * 10_000),
    "not an object": lambda: tensor_bytes([1]),
    "a number": lambda: tensor_bytes(7),
    "long number": lambda: tensor_bytes(b'{"V":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}'),
    "not UTF-8": lambda: tensor_bytes(b'{"\xff":{}}'),
    "absurd shape": lambda: tensor_bytes(entry_of(shape=[2**61, 2**61])),
    "product wraps to 0": lambda: tensor_bytes(entry_of(shape=[2**32, 2**32], data_offsets=[0, 0])),
    "2**61 rows of nothing": lambda: tensor_bytes(entry_of(shape=[2**61, 0], data_offsets=[0, 0])),
    "negative": lambda: tensor_bytes(entry_of(shape=[-1]), bytes(4)),
    "float": lambda: tensor_bytes(entry_of(shape=[1.0]), bytes(4)),
    "bool": lambda: tensor_bytes(entry_of(shape=[True]), bytes(4)),
    "NaN": lambda: tensor_bytes(b'{"V":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', bytes(4)),
    "text": lambda: tensor_bytes(entry_of(shape="11"), bytes(4)),
    "many dimensions": lambda: tensor_bytes(entry_of(shape=[1] * 65), bytes(4)),
    "unknown type": lambda: tensor_bytes(entry_of(dtype="F64"), bytes(4)),
    "type is a list": lambda: tensor_bytes(entry_of(dtype=[]), bytes(4)),
    "offsets reversed": lambda: tensor_bytes(entry_of(data_offsets=[4, 0]), bytes(4)),
    "offsets past the end": lambda: tensor_bytes(entry_of(data_offsets=[4, 8]), bytes(4)),
    "one offset": lambda: tensor_bytes(entry_of(data_offsets=[0]), bytes(4)),
    "unknown key": lambda: tensor_bytes(entry_of(more=1), bytes(4)),
    "metadata": lambda: tensor_bytes({"__metadata__": {"a": "b"}}),
    "overlapping": lambda: tensor_bytes(
        {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in ("U", "V")}, bytes(4)
    ),
    "negative offsets": lambda: tensor_bytes(entry_of(data_offsets=[-4, 0]), bytes(4)),
    "one name twice": lambda: tensor_bytes(
        b'{"V":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"V":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        bytes(8),
    ),
    "offsets of 2**63": lambda: tensor_bytes(entry_of(data_offsets=[2**63, 2**63 + 4]), bytes(4)),
    "hidden bytes": lambda: tensor_bytes(entry_of(), bytes(8)),
}


@pytest.mark.parametrize("make", HEADERS.values(), ids=list(HEADERS))
def test_headers_made_to_be_expensive_or_wrong(
    make: Callable[[], bytes], tmp_path: Path, refused: Callable[..., ArtifactError]
) -> None:
    write_package(tmp_path, make())
    refused()


ARRAYS: dict[str, Callable[[], bytes]] = {
    "NaN in V": lambda: good_tensors(V=np.where(np.eye(20, 3) > 0, np.float32(np.nan), np.float32(1))),
    "Inf in U": lambda: good_tensors(U=np.full((20, 3), np.inf, np.float32)),
    "U of another shape": lambda: good_tensors(U=small_table(20, 4)),
    "U of one dimension": lambda: good_tensors(U=small_table(60, 1).reshape(60)),
    "V of another type": lambda: good_tensors(V=np.ones((20, 3), np.int32)),
    "more words than rows": lambda: good_tensors(V=small_table(21)),
    "an array too many": lambda: good_tensors(W=small_table(1)),
    "an array too few": lambda: b"".join(chunks_of({"V": small_table(20)})),
    "offsets that fall": lambda: good_tensors(**{"document.offsets": np.arange(20, -1, -1)}),
    "offsets past the end": lambda: good_tensors(**{"document.offsets": np.arange(21) * 2**40}),
    "negative offsets": lambda: good_tensors(**{"document.offsets": np.arange(-21, 0)}),
    "words that are not UTF-8": lambda: good_tensors(
        **{"document.words": np.full(20, 0xFF, np.uint8), "document.offsets": np.arange(21)}
    ),
    "one word twice": lambda: good_tensors(
        **{"document.words": np.full(20, 0x61, np.uint8), "document.offsets": np.arange(21)}
    ),
    "counts of 0": lambda: good_tensors(**{"document.document_frequency": np.zeros(20, np.int64)}),
    "counts past the number of documents": lambda: good_tensors(**{"document.document_frequency": np.full(20, 2**62)}),
    "negative number of documents": lambda: good_tensors(**{"document.n_documents": np.array([-1])}),
}


HASHES: dict[str, tuple[Any, Any]] = {
    "key too short": ("0" * 31, np.arange(3, dtype=np.uint64)),
    "key of other digits": ("X" * 32, np.arange(3, dtype=np.uint64)),
    "key as a list": ([1] * 32, np.arange(3, dtype=np.uint64)),
    "hashes that fall": ("0" * 32, np.array([3, 2, 4], np.uint64)),
    "one hash twice": ("0" * 32, np.array([2, 2, 4], np.uint64)),
    "signed hashes": ("0" * 32, np.arange(3, dtype=np.int64)),
    "a square of hashes": ("0" * 32, np.arange(9, dtype=np.uint64).reshape(3, 3)),
    "another number of hashes": ("0" * 32, np.arange(4, dtype=np.uint64)),
}


@pytest.mark.parametrize("name", HASHES)
def test_training_queries_that_break_a_rule(name: str, tmp_path: Path, refused: Callable[..., ArtifactError]) -> None:
    key, hashes = HASHES[name]
    entry = {"key": key, "n": 3}
    write_package(tmp_path, good_tensors(training_queries=hashes), format_version=6, training_queries=entry)
    refused()


@pytest.mark.parametrize("make", ARRAYS.values(), ids=list(ARRAYS))
def test_arrays_that_break_a_rule(
    make: Callable[[], bytes], tmp_path: Path, refused: Callable[..., ArtifactError]
) -> None:
    write_package(tmp_path, make())
    refused()


FIELDS: dict[str, dict[str, Any]] = {
    "later version": {"format_version": 4},
    "version 3 without settings": {"format_version": 3},
    "version 1 with settings": {"lexical": LEXICAL},
    "version 2 with settings": {"format_version": 2, "document_form": "unit", "lexical": LEXICAL},
    "settings of another encoder": {"format_version": 3, "lexical": LEXICAL},
    "version 1 with training queries": {"training_queries": {"key": "0" * 32, "n": 0}},
    "version 6 without training queries": {"format_version": 6},
    "training queries without their array": {"format_version": 6, "training_queries": {"key": "0" * 32, "n": 0}},
    "training queries null": {"format_version": 6, "training_queries": None},
    "training queries a list": {"format_version": 6, "training_queries": ["0" * 32, 0]},
    "training queries without a key": {"format_version": 6, "training_queries": {"n": 0}},
    "training queries with an absurd number": {"format_version": 6, "training_queries": {"key": "0" * 32, "n": True}},
    "settings null": {"format_version": 3, "lexical": None},
    "settings a list": {"format_version": 3, "lexical": [LEXICAL]},
    "settings unknown form": {"format_version": 3, "lexical": LEXICAL | {"form": "bm26"}},
    "settings form a list": {"format_version": 3, "lexical": LEXICAL | {"form": []}},
    "settings unknown key": {"format_version": 3, "lexical": LEXICAL | {"eval": "x"}},
    "settings without weights": {"format_version": 3, "lexical": {"form": "tfidf"}},
    "settings of one field": {"format_version": 3, "lexical": LEXICAL | {"field_weights": [1.0]}},
    "settings weights a text": {"format_version": 3, "lexical": LEXICAL | {"field_weights": "12"}},
    "settings weights a number": {"format_version": 3, "lexical": LEXICAL | {"field_weights": 3}},
    "settings weight null": {"format_version": 3, "lexical": LEXICAL | {"query_weights": [None, 1.0]}},
    "settings weight absurd": {"format_version": 3, "lexical": LEXICAL | {"query_weights": [10**400, 1.0]}},
    "settings k1 a list": {"format_version": 3, "lexical": LEXICAL | {"k1": [1.0]}},
    "settings k1 negative": {"format_version": 3, "lexical": LEXICAL | {"k1": -1.0}},
    "settings b above 1": {"format_version": 3, "lexical": LEXICAL | {"b": [2.0, 0.0]}},
    "settings query_tf an object": {"format_version": 3, "lexical": LEXICAL | {"query_tf": {}}},
    "version 2 without a form": {"format_version": 2},
    "a form in version 1": {"document_form": "unit"},
    "another form": {"format_version": 2, "document_form": "unit"},
    "a form without its table": {"format_version": 2, "document_form": "cubic"},
    "a form that is a list": {"format_version": 2, "document_form": []},
    "version as text": {"format_version": "1"},
    "version true": {"format_version": True},
    "version 1.0": {"format_version": 1.0},
    "no version": {"format_version": None},
    "another format": {"format": "onnx"},
    "format is a list": {"format": ["ssi-model"]},
    "dimensions as text": {"n_dims": "3"},
    "negative dimensions": {"n_dims": -3},
    "absurd dimensions": {"n_dims": 2**62},
    "absurd words": {"n_document_words": 2**62},
    "identity as text": {"identity": "1"},
    "identity null": {"identity": None},
    "identity negative": {"identity": -1.0},
    "identity a whole number": {"identity": 1},
    "tied as number": {"tied": 0},
    "tied where there is a U": {"tied": True},
    "two vocabularies where there is one": {"shared_vocabulary": False},
    "unknown quantisation": {"quantisation": "int4"},
    "another quantisation": {"quantisation": "float32"},
    "quantisation is a list": {"quantisation": []},
    "unknown tf": {"tf": "bm25"},
    "tf is an object": {"tf": {}},
    "view null": {"text_view": None},
    "view a list": {"text_view": []},
    "view without fields": {"text_view": {"fields": [], "strip_html": False, "max_chars": 9}},
    "view fields a number": {"text_view": {"fields": 3}},
    "view weight an object": {"text_view": {"fields": [{"path": "a", "weight": {}}]}},
    "view weight negative": {"text_view": {"fields": [{"path": "a", "weight": -1}]}},
    "view path a number": {"text_view": {"fields": [{"path": 1, "weight": 1}]}},
    "view length absurd": {"text_view": {"fields": [{"path": "a", "weight": 1}], "max_chars": "9"}},
    "view with unknown key": {"text_view": {"fields": [{"path": "a"}], "eval": "x"}},
    "another view": {"text_view": {"fields": [{"path": "a", "weight": 1.0}], "strip_html": False, "max_chars": 9}},
    "query view a number": {"query_view": 3},
    "query view false": {"query_view": False},
    "analyzer null": {"analyzer": None},
    "analyzer kind a list": {"analyzer": {"kind": []}},
    "analyzer kind unknown": {"analyzer": {"kind": "shell"}},
    "analyzer unknown key": {"analyzer": {"kind": "unicode", "module": "os"}},
    "analyzer stop words a path": {"analyzer": {"kind": "unicode", "stop_words": "/etc/passwd"}},
    "analyzer stop words an object": {"analyzer": {"kind": "unicode", "stop_words": {"a": 1}}},
    "analyzer stop words numbers": {"analyzer": {"kind": "unicode", "stop_words": [1, None]}},
    "analyzer stemmer a number": {"analyzer": {"kind": "unicode", "stemmer": 1}},
    "analyzer engine field nothing": {"analyzer": {"kind": "engine"}},
    "encoder id of another": {"encoder_id": "0" * 64},
    "encoder id missing": {"encoder_id": None},
    "training a list": {"training": []},
    "metrics null": {"metrics": None},
}


@pytest.mark.parametrize("changes", FIELDS.values(), ids=list(FIELDS))
def test_manifests_that_break_a_rule(
    changes: dict[str, Any], tmp_path: Path, refused: Callable[..., ArtifactError]
) -> None:
    write_package(tmp_path, **changes)
    refused()


def test_a_later_version_says_what_to_install(tmp_path: Path, refused: Callable[..., ArtifactError]) -> None:
    write_package(tmp_path, format_version=12)
    error = refused(
        r"format version 12; this program reads 1 and 2 and 3 and 4 and 5 and 6 and 7 and 8 and 9 and 10 and 11: in"
    )
    assert error.exit_code == ArtifactError.exit_code


MANIFESTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "white space": lambda good: b" " * 100,
    "deep": lambda good: b"[" * 900_000,
    "deep objects": lambda good: b'{"a":' * 150_000,
    "long number": lambda good: b'{"n_dims": ' + b"9" * 5000 + b"}",
    "NaN": lambda good: good.replace(b'"identity": 1.0', b'"identity": NaN'),
    "too large": lambda good: good + b" " * MAX_MANIFEST_BYTES,
    "2 GB, sparse": lambda good: good,
    "a list": lambda good: b"[]\n",
    "text": lambda good: b'"ssi-model"\n',
    "null": lambda good: b"null\n",
    "byte order mark": lambda good: b"\xef\xbb\xbf" + good,
    "UTF-16": lambda good: good.decode().encode("utf-16"),
    "not UTF-8": lambda good: good.replace(b"unicode", b"unic\xffde"),
    "key twice": lambda good: good.replace(b'  "tf": "log",\n', b'  "tf": "raw",\n  "tf": "log",\n'),
    "other spacing": lambda good: good.replace(b'"tf": "log"', b'"tf":"log"'),
    "Windows line ends": lambda good: good.replace(b"\n", b"\r\n"),
    "escaped letter": lambda good: good.replace(b'"log"', b'"\\u006cog"'),
    "number in other words": lambda good: good.replace(b'"identity": 1.0', b'"identity": 10e-1'),
    "edited": lambda good: good.replace(b'"identity": 1.0', b'"identity": 9.0'),
    "id in capitals": lambda good: good.replace(
        small_model().model_id.encode(), small_model().model_id.upper().encode()
    ),
    "surrogate in a key": lambda good: b'{"\\ud800": 1}',
}


@pytest.mark.parametrize("name", list(MANIFESTS))
def test_bytes_that_are_no_manifest(name: str, tmp_path: Path, refused: Callable[..., ArtifactError]) -> None:
    path = write_package(tmp_path) / "manifest.json"
    good = path.read_bytes()
    path.write_bytes(MANIFESTS[name](good))
    if name.endswith("sparse"):
        os.truncate(path, 2 << 30)
    elif MANIFESTS[name](good) == good:
        pytest.fail("this case changes nothing")
    refused()


def test_a_sparse_file_of_arrays_is_refused_by_its_size(tmp_path: Path, refused: Callable[..., ArtifactError]) -> None:
    folder = write_package(tmp_path)
    (path,) = folder.glob("tensors-*")
    os.truncate(path, 1 << 40)
    refused("bytes where the manifest says")
    content = good_content()
    next(iter(content["files"].values()))["bytes"] = 1 << 40
    write_manifest(folder, content)
    refused("its header requires")


def test_a_saved_model_does_not_write_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    target = tmp_path / "target"
    target.write_text("keep")
    for name in (".ssi-tmp-manifest.json", f".ssi-tmp-{next(iter(small_model().manifest['files']))}", "manifest.json"):
        (folder / name).symlink_to(target)
    save_model(small_model(), folder)
    assert target.read_text() == "keep"
    assert load_model(folder).model_id == small_model().model_id


def test_a_folder_behind_a_link_is_loaded(tmp_path: Path) -> None:
    save_model(small_model(), tmp_path / "model")
    (tmp_path / "current").symlink_to("model")
    assert load_model(tmp_path / "current").model_id == small_model().model_id


@pytest.mark.parametrize("turn", [0, 1])
def test_a_link_that_is_changed_while_a_model_is_loaded_gives_one_model_or_the_other(
    turn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = small_model(), small_model(n_dims=4)
    assert first.model_id != second.model_id
    save_model(first, tmp_path / "first")
    save_model(second, tmp_path / "second")
    link, opened = tmp_path / "current", list[str]()
    link.symlink_to("first")
    plain = _open_regular

    def swapping(path: Path) -> int:
        if len(opened) == turn:
            link.unlink()
            link.symlink_to("second")
        opened.append(path.name)
        return plain(path)

    for module in ("manifest", "model_folder"):
        monkeypatch.setattr(f"reranker.models.{module}._open_regular", swapping)
    assert load_model(link).model_id == second.model_id


def test_a_file_exchanged_for_a_link_while_a_model_is_loaded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(small_model(), tmp_path / "model")
    (path,) = (tmp_path / "model").glob("tensors-*")
    read = describe_model

    def exchanging(folder: Path) -> Any:
        content = read(folder)
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
        return content

    monkeypatch.setattr("reranker.models.model_folder.describe_model", exchanging)
    with pytest.raises(ArtifactError, match="links are not followed"):
        load_model(tmp_path / "model")
