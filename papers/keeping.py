"""Results of one system on one study as files: what was measured, whole or not at all, and for what inputs."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.files import write_file

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Kept:
    """What is kept of one system on one study.

    Parameters
    ----------
    values : mapping of measure to (n,) float64
        One a query, or a pair; NaN where a query has none. Empty where the system failed.
    settings : mapping
        What was chosen on validation.
    seconds : mapping of str to float
        ``fit`` and ``measure``.
    failure : str
        Why there are no values; "" where there are.
    """

    values: Mapping[str, Values]
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""


class Shelf:
    """The files of one system on one study: ``NAME.json``, ``NAME.npz`` and ``NAME.run.gz``.

    Every file is written aside and renamed, the JSON file last; it holds the hash of the values, so files of two runs
    are never taken for one.

    Parameters
    ----------
    folder : Path
        Of the study; made when something is written.
    name : str
        Of the system.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, file_name(name)

    @property
    def report(self) -> Path:
        """The JSON file."""
        return self._folder / f"{self._name}.json"

    @property
    def numbers(self) -> Path:
        """The values of single queries."""
        return self._folder / f"{self._name}.npz"

    @property
    def run(self) -> Path:
        """The rankings, as TREC tools read them."""
        return self._folder / f"{self._name}.run.gz"

    def load(self, fingerprint: str) -> Kept | None:
        """Return what was kept under this fingerprint; None if nothing was, or the files are damaged."""
        try:
            report = json.loads(self.report.read_bytes())
            if report["fingerprint"] != fingerprint:
                return None
            data = self.numbers.read_bytes()
            if hashlib.sha256(data).hexdigest() != report["values_sha256"]:
                return None
            with np.load(io.BytesIO(data), allow_pickle=False) as found:
                values = {name: found[name].astype(np.float64) for name in found.files}
            return Kept(values, report["settings"], report["seconds"], report["failure"])
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
            return None

    def save(self, fingerprint: str, kept: Kept, more: Mapping[str, Any]) -> None:
        """Keep values and settings; ``more`` goes into the JSON file as it is."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **{str(name): array for name, array in kept.values.items()})
        data = buffer.getvalue()
        report = {
            **more,
            "fingerprint": fingerprint,
            "values_sha256": hashlib.sha256(data).hexdigest(),
            "means": {name: _mean(array) for name, array in kept.values.items()},
            "settings": dict(kept.settings),
            "seconds": dict(kept.seconds),
            "failure": kept.failure,
        }
        write_file(self.numbers, data)
        text = json.dumps(report, indent=1, ensure_ascii=False, default=_plain) + "\n"
        write_file(self.report, text.encode("utf-8"))

    def keep_run(self, plain: Path) -> None:
        """Compress a finished run file to its place; equal runs give equal bytes."""
        write_file(self.run, gzip.compress(plain.read_bytes(), 6, mtime=0))


def file_name(name: str) -> str:
    """Return a name without anything that folders or shells take for something else."""
    return quote(name, safe="+ ,=@").replace(" ", "-") or "-"


def version() -> str:
    """Return the version of this program."""
    try:
        return metadata.version("ssi-reranker")
    except metadata.PackageNotFoundError:
        return "unknown"


def fingerprint(*parts: Any) -> str:
    """Return a hash of everything that values depend on: equal content gives equal hashes on every machine.

    Parameters
    ----------
    *parts
        Numbers, texts, arrays, sparse matrices, and mappings, sequences and dataclasses of such.
    """
    state = hashlib.sha256()
    _add(state, parts)
    return state.hexdigest()


def _add(state: Any, value: Any) -> None:
    """Feed one value with its type, so that no two values read alike."""
    if isinstance(value, np.ndarray):
        state.update(f"array {value.dtype.str} {value.shape};".encode())
        state.update(np.ascontiguousarray(value).data)
    elif sp.issparse(value):
        rows = sp.csr_matrix(cast(Any, value))
        _add(state, (rows.shape, rows.indptr.astype(np.int64), rows.indices.astype(np.int64), rows.data))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _add(state, {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)})
    elif isinstance(value, Mapping):
        _add(state, sorted(value.items()))
    elif isinstance(value, list | tuple):
        state.update(f"sequence {len(value)};".encode())
        for one in value:
            _add(state, one)
    else:
        text = repr(value.item() if isinstance(value, np.generic) else value)
        state.update(f"{len(text)} {text};".encode("utf-8", "surrogatepass"))


def _mean(values: Values) -> dict[str, float | int | None]:
    """Return mean, standard error and number of the values there are."""
    there = values[~np.isnan(values)]
    n = len(there)
    error = float(there.std(ddof=1) / np.sqrt(n)) if n > 1 else None
    return {"mean": float(there.mean()) if n else None, "standard_error": error, "n": n}


def _plain(value: Any) -> Any:
    """Return what JSON can hold of a setting."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, frozenset | set):
        return sorted(value)
    return str(value)
