"""What a search engine is to this project: one protocol, in Elasticsearch's own terms, and what goes over it.

A request body is the Elasticsearch/OpenSearch search body. The embedded engines accept a stated subset of it and
refuse the rest with `reranker.errors.Unsupported`; they never ignore a part silently. No method retries unless the
engine was opened with `reranker.engines.retry.Retries`, as commands do that run long. Bulk requests are never retried
here: the loop of `indexer.bulk` decides about each document.

Reranking takes two requests: `candidate_body` asks for ids and scores of a whole window, `page_body` for what the
team wants to show of the few hits on the page. Whatever decides *which* documents match stays in the first.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable
from urllib.parse import quote

import msgspec

from reranker.config import check_ranges, reject_unknown
from reranker.errors import ConfigError, EngineAuthError, EngineRejected, FallbackError, InputError
from reranker.records import MAX_ID_BYTES, SearchAnswer, StoredDocument

MAX_HITS = 10_000
"""Largest answer of an engine (``index.max_result_window``), and largest ``num_candidates`` and rescore window."""
PASSED_HEADERS = ("x-opaque-id", "traceparent", "tracestate")
"""Headers of a request to the service that its requests to the engine carry too: they tie logs and traces together."""
passed_headers: ContextVar[Mapping[str, str] | None] = ContextVar("passed_headers", default=None)
"""Those of the request that is answered in this context."""
SourceFilter = bool | Sequence[str]
"""``_source`` of a read: True (all), False (none) or the field paths wanted."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the engine at hand can do, found by asking it, never by its name alone."""

    kind: str
    """Name of the engine, for messages: ``elasticsearch``, ``opensearch`` or ``tantivy``."""
    version: str = ""
    """Version number as the engine tells it, or "" where it does not."""
    dense_vector: str = ""
    """Mapping type for a stored vector (``dense_vector``, ``knn_vector``), or "" where there is none."""
    sparse_terms: str = ""
    """Mapping type for words with weights (``sparse_vector``, ``rank_features``), or ""."""
    painless: bool = False
    """Scripts can be run in a query: the language is there and the cluster's settings allow it."""
    vector_product: str = ""
    """Painless for the inner product of ``params.u`` and the stored vector ``@VECTOR@``; "" where there is none."""
    hnsw: bool = False
    """A search can find documents by their vectors."""
    rescore_script: bool = False
    """A ``rescore`` may be a script, which sees the first-stage score."""
    max_bulk_bytes: int = 100 * 1024 * 1024
    """Largest request body accepted (``http.max_content_length``)."""
    max_dims: int = 4096
    """Largest number of dimensions of a vector field."""
    product: str = ""
    """What good answers carry as ``X-Elastic-Product``, for which the vendor's clients look; "": nothing."""
    modules: frozenset[str] | None = None
    """Names of modules and plugins; None where the engine did not tell."""


def version_numbers(version: str) -> tuple[int, ...]:
    """Return ``8.19.2-SNAPSHOT`` as (8, 19, 2), to compare by."""
    return tuple(int(part) for part in version.partition("-")[0].split(".") if part.isdigit())


@dataclass(frozen=True, slots=True)
class WriteOp:
    """One document write of a bulk request."""

    action: Literal["index", "create", "update", "delete"]
    id: str
    source: Mapping[str, Any] | None = None
    """The document, or the part that ``update`` merges into the stored one; None for ``delete``."""
    routing: str | None = None
    """Shard routing of the document."""
    if_seq_no: int | None = None
    if_primary_term: int | None = None
    """Write only over exactly this version, else the result has status 409."""
    version: int | None = None
    """External version: written only if greater than the stored one, else status 409."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The engine's word on one `WriteOp`: HTTP-like ``status`` (200/201 stored), or the error's type and reason."""

    id: str
    status: int
    error_type: str = ""
    reason: str = ""
    seq_no: int = -1
    primary_term: int = -1


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """A concrete index."""

    name: str
    properties: Mapping[str, Any]
    mapping: Mapping[str, Any] = field(default_factory=dict)
    """The whole ``mappings`` object: ``properties``, ``_source``, ``dynamic``, ``_routing``, ``_meta``."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Flat index settings (``index.number_of_shards`` → str)."""
    aliases: tuple[str, ...] = ()
    """Aliases that point to it."""
    data_stream: str | None = None
    """The data stream it backs, if any."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Size of an index, copies included, and space of the fullest data node; None where the engine does not tell."""

    index_bytes: int
    free_bytes: int | None
    total_bytes: int | None


@runtime_checkable
class ReportsDisk(Protocol):
    """An engine that tells how much disk an index takes; not part of every engine."""

    def disk_usage(self, index: str) -> DiskUsage:
        """Return the disk space behind an index."""


@runtime_checkable
class ReadsByWrites(Protocol):
    """An engine whose documents can be read in the order of their last writes, from any of them on."""

    def scan_writes(
        self, index: str, seq_no: int, *, source: SourceFilter = True, batch_size: int = 500
    ) -> Iterator[list[StoredDocument]]:
        """Yield all documents of one view whose last write has this number or a greater one, in that order."""


@runtime_checkable
class TakesRequests(Protocol):
    """An engine reached over HTTP, to which any request of its own API can be sent: scripts, pipelines, licences."""

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the JSON object that answers a request; an error status raises an `EngineError`."""


@runtime_checkable
class Engine(Protocol):
    """A search engine. All methods raise subclasses of `reranker.errors.EngineError`, and nothing else, on failure."""

    @property
    def spec(self) -> str:
        """The engine spec without credentials, fit for messages: ``elasticsearch:http://127.0.0.1:9200``."""

    @property
    def in_process(self) -> bool:
        """True for an embedded engine, False for a server that others may use too; known without asking it."""

    def capabilities(self) -> Capabilities:
        """Return what this engine can do; asked once, then remembered."""

    def index_names(self, name: str) -> tuple[str, ...]:
        """Return the concrete indexes behind an index or alias name, sorted; empty where it does not exist."""

    def index_uuids(self, name: str) -> dict[str, str]:
        """Return `index_names` with what tells each index from another that had its name before."""

    def create_index(self, index: str, mapping: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> None:
        """Create an index with a ``mappings`` object; `EngineRejected` where it exists."""

    def delete_index(self, index: str) -> None:
        """Delete a concrete index; `IndexMissing` where it is not there."""

    def index_info(self, index: str) -> IndexInfo:
        """Return mapping, settings and aliases of one concrete index."""

    def put_properties(self, index: str, properties: Mapping[str, Any]) -> None:
        """Add fields to a mapping; never changes an existing one."""

    def swap_alias(self, alias: str, add: str, remove: Sequence[str] = ()) -> None:
        """Point ``alias`` to ``add`` and take it from ``remove`` in one atomic step."""

    def refresh(self, index: str) -> None:
        """Make all acknowledged writes visible to search."""

    def count(self, index: str, query: Mapping[str, Any] | None = None) -> int:
        """Return the number of documents (that match ``query``)."""

    def bulk(self, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        """Send one bulk request and return one result an operation, in order.

        Raises `EngineUnavailable` when the answer is missing, cut or of another length than the request, and never
        creates an index that does not exist (`IndexMissing` instead, or a result with status 404 an operation).
        """

    def get(self, index: str, ids: Sequence[str], *, source: SourceFilter = True) -> list[StoredDocument | None]:
        """Return the stored documents in the order of ``ids``, None for each that is not there (realtime read)."""

    def scan(
        self, index: str, *, query: Mapping[str, Any] | None = None, source: SourceFilter = True, batch_size: int = 500
    ) -> Iterator[list[StoredDocument]]:
        """Yield all documents (that match ``query``) in batches, over one consistent view where the engine has it."""

    def search(
        self, index: str, body: Mapping[str, Any], *, preference: str | None = None, timeout_s: float | None = None
    ) -> SearchAnswer:
        """Run a search body; ``timeout_s`` bounds the whole call (`EngineUnavailable` past it)."""

    def analyze(self, index: str, field: str, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens that the engine's own analysis chain of ``field`` makes of each text."""

    def close(self) -> None:
        """Release connections and files; the engine is not used afterwards."""


def refresh_if_allowed(engine: Engine, index: str) -> None:
    """Refresh before reading; a role that may not reads what the last refresh, about a second ago, left."""
    try:
        engine.refresh(index)
    except EngineAuthError as error:
        if error.status != 403:
            raise


def ensure_index(engine: Engine, index: str, mapping: Mapping[str, Any], settings: Mapping[str, Any] | None) -> None:
    """Create an index where it is missing; that somebody else made it meanwhile is no error."""
    if engine.index_names(index):
        return
    try:
        engine.create_index(index, mapping, settings)
    except EngineRejected:
        # Anything but that shows again with the first write.
        if not engine.index_names(index):
            raise


# --- settings of a connection

_TEXTS = ("user", "password", "api_key", "ca_file", "proxy", "aws_region", "aws_service")
_ENVIRONMENT = {name: f"SSI_ENGINE_{name.upper()}" for name in _TEXTS}
_TIMES = {"connect_timeout_s": "SSI_ENGINE_CONNECT_TIMEOUT", "read_timeout_s": "SSI_ENGINE_READ_TIMEOUT"}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Time limits and credentials of an engine reached over HTTP. Secrets never show in ``repr``.

    `ConfigError`: half of or two kinds of credentials, a time not above 0, no CA file, no legal header or proxy.
    """

    connect_timeout_s: float = 5.0
    """Seconds allowed for opening a connection."""
    read_timeout_s: float = 60.0
    """Seconds allowed for a whole answer, where the call sets no limit of its own."""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    """HTTP basic authentication; both or neither."""
    api_key: str | None = field(default=None, repr=False)
    """The encoded API key (``id:key`` in base64), in place of user and password."""
    ca_file: str | None = None
    """Certificates (PEM) that sign the engine's own; None uses the usual ones."""
    verify: bool = True
    """False accepts any certificate: for trials only."""
    connections: int = 16
    """Most connections kept open at once."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request: what a gateway before the engine asks for."""
    proxy: str | None = field(default=None, repr=False)
    """URL of the HTTP proxy by which the engine is reached."""
    aws_region: str | None = None
    """Region of an engine at AWS: requests are signed (SigV4) with the credentials that botocore finds."""
    aws_service: str = "es"
    """{'es', 'aoss'}: AWS's name of the service; ``aoss`` is OpenSearch Serverless."""

    def __post_init__(self) -> None:
        kinds = {
            "SSI_ENGINE_API_KEY": self.api_key,
            "SSI_ENGINE_USER": self.user,
            "SSI_ENGINE_AWS_REGION": self.aws_region,
            "Authorization among SSI_ENGINE_HEADERS": {name.lower() for name in self.headers} & {"authorization"},
        }
        if (self.user is None) != (self.password is None):
            raise ConfigError(
                "user and password of the engine belong together, only one is set: "
                "set both SSI_ENGINE_USER and SSI_ENGINE_PASSWORD, or neither"
            )
        if len(stated := [kind for kind, value in kinds.items() if value]) > 1:
            raise ConfigError(
                f"{' and '.join(stated)} are set for the engine, it takes one kind of credentials: unset all but one "
                "(the variable, or its key in the table [engine])"
            )
        for name, value in self.headers.items():
            if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or not re.fullmatch(r"[\x20-\x7e]*", value):
                raise ConfigError(f"header {name!r:.60} is not legal: a name and a value of one line in ASCII")
        if self.proxy is not None and not re.match(r"https?://[^/\s]", self.proxy):
            raise ConfigError("the proxy of the engine is no URL: write http://HOST:PORT")
        if self.aws_service not in ("es", "aoss"):
            raise ConfigError(f"aws_service is {self.aws_service!r:.60}: choose es, or aoss for OpenSearch Serverless")
        check_ranges(self, **dict.fromkeys(_TIMES, "(0, inf)"))
        if self.ca_file is not None and not Path(self.ca_file).is_file():
            raise ConfigError(f"CA file {self.ca_file!r} is not a file: set SSI_ENGINE_CA_FILE to a PEM file")

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Return the legal keys of the ``[engine]`` table of a configuration file."""
        return tuple(cls.__dataclass_fields__)

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, table: Mapping[str, Any] | None = None
    ) -> EngineSettings:
        """Return the settings of non-empty SSI_ENGINE_* variables over ``table``; `ConfigError` shows no secret."""
        variables = os.environ if environ is None else environ
        values = dict(table or {})
        reject_unknown(values.keys(), cls.keys(), "engine settings")
        for name, value in values.items():
            _check_type(name, value)
        values |= {name: variables[key] for name, key in _ENVIRONMENT.items() if variables.get(key)}
        values |= {name: _seconds(key, variables[key]) for name, key in _TIMES.items() if variables.get(key)}
        if variables.get("SSI_ENGINE_HEADERS"):
            values["headers"] = _headers(variables["SSI_ENGINE_HEADERS"])
        if variables.get("SSI_ENGINE_VERIFY"):
            values["verify"] = variables["SSI_ENGINE_VERIFY"].lower() not in ("0", "false", "no")
        return cls(**values)


def _check_type(name: str, value: Any) -> None:
    """Refuse a value that is not of its key's type, without repeating it."""
    types: type | tuple[type, ...] = str
    wanted = "a text in quotes"
    if name == "verify":
        types, wanted = bool, "true or false"
    elif name in (*_TIMES, "connections"):
        types, wanted = (int, float), "a number"
    elif name == "headers":
        types, wanted = dict, "a table of texts"
    whole = all(isinstance(part, str) for part in value.values()) if isinstance(value, dict) else True
    if not isinstance(value, types) or not whole or (isinstance(value, bool) and name != "verify"):
        raise ConfigError(f"engine setting {name!r} is of type {type(value).__name__}; give {wanted}", key=name)


def _headers(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        raise ConfigError('SSI_ENGINE_HEADERS is no JSON object of texts: write {"X-Tenant": "shop"}') from None


def _seconds(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{key}={text!r} is not a number of seconds; give one such as 30") from None


# --- writes that no engine takes


def refusal(op: WriteOp) -> WriteResult | None:
    """Return the 400 of an operation that no engine takes, or None: one such fails a whole bulk request on both."""
    reason = id_fault(op.id) or _option_fault(op)
    return None if reason is None else WriteResult(op.id, 400, "illegal_argument_exception", reason)


def id_fault(identifier: str) -> str | None:
    """Return why an id is not usable, None where it is: one such id fails a whole bulk request on both engines."""
    if not isinstance(identifier, str):
        return f"id {identifier!r:.80} is not a string: give ids as strings"
    try:
        size = len(identifier.encode("utf-8"))
    except UnicodeEncodeError:
        return f"id {identifier!a:.80} holds a lone surrogate, which is not UTF-8; give the document another id"
    if size == 0:
        return "the id is empty; it takes 1 to 512 bytes of UTF-8"
    if size > MAX_ID_BYTES:
        return f"id {identifier!r:.40}... has {size} bytes; it takes at most {MAX_ID_BYTES}: shorten or hash it"
    return None


def _option_fault(op: WriteOp) -> str | None:
    by_seq_no = op.if_seq_no is not None or op.if_primary_term is not None
    if op.version is not None and (op.action in ("create", "update") or by_seq_no):
        return f"an external version ({op.version}) goes with 'index' and 'delete' only, and not with if_seq_no"
    if (op.if_seq_no is None) != (op.if_primary_term is None):
        return "if_seq_no and if_primary_term belong together"
    if by_seq_no and op.action == "create":
        return "'create' takes no if_seq_no: the document must not exist"
    if (op.source is None) != (op.action == "delete"):
        return f"'{op.action}' {'takes no' if op.action == 'delete' else 'needs a'} source"
    return None


# --- JSON, names and settings of indexes

Json = Any
"""A JSON value: object, array, text, number, bool or None."""

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_decoder = msgspec.json.Decoder()
_FORBIDDEN = frozenset('\\/*?"<>| ,#:')


def json_bytes(value: Json) -> bytes:
    """Return compact JSON in UTF-8; `ValueError` (NaN, lone surrogate, loop, too deep) or `TypeError` (no JSON)."""
    try:
        return _encoder.encode(value).encode("utf-8")
    except RecursionError:
        raise ValueError("nested too deep to be written as JSON") from None


def json_value(data: bytes) -> Json:
    """Return the value of a JSON text; `ValueError`: not a whole JSON text."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        # msgspec refuses lone surrogates, which both engines send back when they were indexed; json takes them.
        try:
            return json.loads(data)
        except RecursionError:
            raise ValueError("nested too deep to be read as JSON") from None


def changed_texts(value: Json, change: Callable[[str], str], *, names: bool = False) -> Json:
    """Return a copy of a JSON value with each text changed, with ``names`` those of an object's parts too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(n) if names else n: changed_texts(item, change, names=names) for n, item in value.items()}
    return [changed_texts(item, change, names=names) for item in value] if isinstance(value, list) else value


def check_name(name: str) -> str:
    """Return an index or alias name as it is; `EngineRejected` for patterns, lists and what no engine takes."""
    wrong = sorted(set(name) & _FORBIDDEN)
    if not name or wrong or name[0] in "-_+" or name in (".", "..") or len(name.encode("utf-8", "replace")) > 255:
        detail = f" (it contains {wrong[0]!r})" if wrong else ""
        message = (
            f"index name {name!r:.80} is not legal{detail}: give one plain name, 1 to 255 bytes, that does not start "
            "with '-', '_' or '+'; patterns and lists are not taken"
        )
        raise EngineRejected(message, status=400, error_type="invalid_index_name_exception")
    return name


def quoted(name: str) -> str:
    """Return a checked index name for a URL path."""
    return quote(check_name(name), safe="")


def flat_settings(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """Return index settings flat, as engines tell them: ``index.number_of_shards`` → "1"."""
    flat: dict[str, str] = {}

    def walk(value: Mapping[str, Any], prefix: str) -> None:
        for name, child in value.items():
            path = f"{prefix}{name}"
            if isinstance(child, Mapping):
                walk(child, f"{path}.")
            else:
                path = path if path.startswith("index.") else f"index.{path}"
                flat[path] = ("true" if child else "false") if isinstance(child, bool) else str(child)

    walk(settings or {}, "")
    return flat


# --- search bodies

_PLACE = "{{query}}"
"""Where a body template takes the text of the query."""

_SHOWN_OF_HITS = (
    "_source", "fields", "docvalue_fields", "stored_fields", "script_fields", "highlight", "explain", "version",
    "seq_no_primary_term",
)  # fmt: skip
_SHOWN_ONLY = frozenset({*_SHOWN_OF_HITS, "from", "size", "track_scores", "profile"})
"""Parts of a body that decide what is shown of a hit, not which hits there are."""

_ANSWERS = frozenset({"aggs", "aggregations", "suggest"})
"""Parts answered over the whole hit set: asked once, with the candidates."""

_PAGE_KEYS = (*_SHOWN_OF_HITS, "runtime_mappings", "derived", "timeout", "ext")


def default_query_body(query: str, fields: Sequence[str]) -> dict[str, Any]:
    """Return the body of a plain BM25 search, summed over fields such as ``title^2``; `InputError` without fields."""
    if not fields:
        raise InputError("no field to search in: name at least one, such as title^2")
    if len(fields) == 1 and "^" not in fields[0]:
        return {"query": {"match": {fields[0]: {"query": query}}}}
    return {"query": {"multi_match": {"query": query, "fields": list(fields), "type": "most_fields"}}}


def fill_template(body: Mapping[str, Any], query: str) -> dict[str, Any]:
    """Return a copy of a body template, ``query`` in each place of ``{{query}}``; `ConfigError` if there is none."""
    if changed_texts(body, lambda text: text.replace(_PLACE, "")) == body:
        raise ConfigError(
            f"the body template has no place for the query: write {_PLACE} where the query's text belongs"
        )
    filled: dict[str, Any] = changed_texts(body, lambda text: text.replace(_PLACE, query))
    return filled


Scalar = str | int | float | bool
_VARIABLE = re.compile(r"\{\{([A-Za-z_]\w*)(\?|=((?:[^}]|}(?!}))*))\}\}")


class _Absent(Exception):
    """A variable without a value stands there."""


def variables_of(template: Mapping[str, Any]) -> dict[str, Scalar | list[Any] | None]:
    """Return the variables of a body template with their defaults: None for ``{{name?}}``, which may be absent.

    The default of ``{{name=DEFAULT}}`` is JSON (``{{size=10}}``), or else a text. `ConfigError` for ``{{name}}`` with
    neither, for two defaults of one name, and for a default that is an object.
    """
    found: dict[str, Scalar | list[Any] | None] = {}

    def note(text: str) -> str:
        for name, how, written in _VARIABLE.findall(text):
            default = None if how == "?" else _default(name, written)
            if name in found and found[name] != default:
                raise ConfigError(f"the variable {name!r} of the body has two defaults: write the same one everywhere")
            found[name] = default
        if rest := re.search(r"\{\{(?!query\}\}).*?\}\}", _VARIABLE.sub("", text)):
            raise ConfigError(f"{rest[0]:.60} in the body is no variable: write {{{{name?}}}} or {{{{name=DEFAULT}}}}")
        return text

    changed_texts(dict(template), note)
    return found


def _default(name: str, written: str) -> Scalar | list[Any]:
    try:
        value: Any = json.loads(written)
    except ValueError:
        value = None if written.startswith("{") else written
    if not _is_value(value):
        raise ConfigError(f"the default of {name!r} in the body is {written:.60}: write a text, number, true or list")
    return value  # type: ignore[no-any-return]


def _is_value(value: Any) -> bool:
    return isinstance(value, str | int | float) or (
        isinstance(value, list) and all(isinstance(item, str | int | float) for item in value)
    )


def fill_variables(template: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a body template with its variables filled, ``{{query}}`` left as it is.

    A text that is nothing but a variable becomes the value itself, be it a number or a list. One without value and
    default takes the innermost element of a list that holds it along (a clause of ``filter``), else the whole part of
    the body. `InputError` for a value without a variable, of another JSON type than its default, or neither a text, a
    number, true or false, nor a list of these.
    """
    defaults = variables_of(template)
    if unknown := sorted(values.keys() - defaults.keys()):
        legal = ", ".join(sorted(defaults)) or "none"
        raise InputError(f"variable {unknown[0]!r:.60} is not in the search body; its variables: {legal}")
    for name, value in values.items():
        default = defaults[name]
        if not _is_value(value) or (default is not None and _json_type(value) != _json_type(default)):
            wanted = "text, number, boolean or list of these" if default is None else _json_type(default)
            raise InputError(f"variable {name!r} of the search body takes a {wanted}, not this {_json_type(value)}")
    given = {**defaults, **values}

    def text_of(match: re.Match[str]) -> str:
        value = _present(given[match[1]])
        return value if isinstance(value, str) else json.dumps(value)

    def filled(node: Any) -> Any:
        if isinstance(node, str):
            whole = _VARIABLE.fullmatch(node)
            return _present(given[whole[1]]) if whole else _VARIABLE.sub(text_of, node)
        if isinstance(node, Mapping):
            return {name: filled(item) for name, item in node.items()}
        return list(kept(node)) if isinstance(node, list) else node

    def kept(items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            with suppress(_Absent):
                yield filled(item)

    # Each part of the body as a list of one: it is left out as a whole.
    return {name: part for name, value in template.items() for part in kept([value])}


def _present(value: Any) -> Any:
    if value is None:
        raise _Absent
    return value


def _json_type(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "text", list: "list"}
    return names.get(type(value), "null" if value is None else "object")


def window_of(body: Mapping[str, Any]) -> tuple[int, int]:
    """Return ``from`` and ``size`` of a body, with the engines' defaults 0 and 10."""
    return int(body.get("from", 0)), int(body.get("size", 10))


def not_rerankable(body: Mapping[str, Any]) -> str:
    """Return why the hits of this body keep the engine's order, or an empty string if they may be reranked.

    Not reranked: no hits asked for (``size: 0``), an order other than by ``_score``, and pages taken with
    ``search_after``, whose place in a reranked order is not known.
    """
    if body.get("size", 10) == 0:
        return "the body asks for no hits (size: 0)"
    if body.get("search_after") is not None:
        return "the body pages with search_after, which follows the engine's own order"
    sort = "_score" if body.get("sort") in (None, []) else body["sort"]
    # Further keys only order equal scores.
    first = sort[0] if isinstance(sort, (list, tuple)) else sort
    if not _by_score(first):
        name = next(iter(first)) if isinstance(first, Mapping) and first else first
        return f"the body sorts by {name}, not by _score"
    return ""


def _by_score(first: Any) -> bool:
    """Return True if the first key of a sort is the score, best first."""
    if not isinstance(first, Mapping):
        return first in ("_score", "_score:desc")
    order = first.get("_score")
    if isinstance(order, Mapping):
        order = order.get("order", "desc")
    return len(first) == 1 and str(order).lower() == "desc"


def candidate_body(
    body: Mapping[str, Any], window: int, source_fields: Sequence[str] = (), *, answers: bool = True
) -> dict[str, Any]:
    """Return the body that asks for the first ``window`` hits with nothing to show but ``source_fields``.

    Kept: the query and everything else that decides which documents match and in what order (``post_filter``,
    ``collapse``, ``min_score``, ``rescore``, ``knn``, ``retriever``, ``sort``, ...), and what is answered over all
    hits (aggregations, suggestions), but for requests whose answer is not shown (``answers`` is False). Left to
    `page_body`: ``_source``, fields, highlight, inner hits. ``source_fields`` are what of ``_source`` is sent along
    (``ssi_..._vec``, or the text to encode). `InputError` if ``window`` is below 1.
    """
    if window < 1:
        raise InputError(f"window is {window}; it is at least 1")
    dropped = _SHOWN_ONLY if answers else _SHOWN_ONLY | _ANSWERS
    result = {name: copy.deepcopy(value) for name, value in body.items() if name not in dropped}
    collapse = result.get("collapse")
    if isinstance(collapse, dict):
        # Inner hits cost one search a group; they are asked for with the page.
        collapse.pop("inner_hits", None)
    return {**result, "from": 0, "size": window, "_source": list(source_fields) or False}


def bounded(body: Mapping[str, Any], deadline: Deadline) -> Mapping[str, Any]:
    """Return a body whose search the engine gives up when the deadline has passed: nobody waits for it then.

    A shorter ``timeout`` of the body itself stays.
    """
    left_ms = math.inf if deadline.limit_s is None else max(round(deadline.left_ms), 1)
    own_ms = _milliseconds(body.get("timeout"))
    return body if own_ms <= left_ms else {**body, "timeout": f"{left_ms}ms"}


def _milliseconds(timeout: Any) -> float:
    """Return the time of a ``timeout`` such as ``2s``; infinite for none, and for a form that only the engine knows."""
    units = {"ms": 1.0, "s": 1000.0, "m": 60_000.0}
    match = re.fullmatch(r"(\d+)(ms|s|m)", timeout) if isinstance(timeout, str) else None
    return math.inf if match is None else float(match[1]) * units[match[2]]


def page_body(body: Mapping[str, Any], ids: Sequence[str]) -> dict[str, Any]:
    """Return the body that fetches what the team shows of these documents; the order of its hits means nothing.

    The team's query is kept as an optional clause, so that highlights, inner hits and named queries work while
    every id, an ``_id`` of a hit on the page, comes back, also one found by ``knn`` alone.
    """
    result = {name: copy.deepcopy(body[name]) for name in _PAGE_KEYS if name in body}
    result["query"] = query_of_ids(body, ids)
    source = result.get("_source", True)
    return {**result, "from": 0, "size": len(ids), "_source": source, "track_total_hits": False}


def query_of_ids(body: Mapping[str, Any], ids: Sequence[str]) -> dict[str, Any]:
    """Return the query for documents with these ids, scored by that of ``body``; 0 where they do not match it."""
    query = copy.deepcopy(body.get("query"))
    return {"bool": {"filter": [{"ids": {"values": list(ids)}}], **({"should": [query]} if query else {})}}


# --- time


class Deadline:
    """The time of one request or wait, counted from the creation: ``limit_s`` seconds (None: no limit) by ``now``.

    ``stages_ms`` are milliseconds by stage, as `note_stage` was told.
    """

    def __init__(self, limit_s: float | None = None, now: Callable[[], float] = time.perf_counter) -> None:
        self.limit_s, self.now = limit_s, now
        self.started = self._noted = now()
        self.stages_ms: dict[str, float] = {}

    @property
    def spent_s(self) -> float:
        """Seconds since the creation."""
        return self.now() - self.started

    @property
    def left_s(self) -> float:
        """Seconds left, 0 or more; infinite without a limit."""
        return math.inf if self.limit_s is None else max(self.limit_s - self.spent_s, 0.0)

    @property
    def left_ms(self) -> float:
        """Milliseconds left, 0 or more."""
        return self.left_s * 1000.0

    @property
    def passed(self) -> bool:
        """True where no time is left."""
        return self.left_s == 0.0

    def timeout_s(self, at_least: float = 0.001) -> float | None:
        """Return the seconds that a request to an engine may take; None without a limit."""
        return None if self.limit_s is None else max(self.left_s, at_least)

    def check(self, doing: str) -> None:
        """Raise `FallbackError` if the deadline has passed while ``doing`` went on."""
        if self.passed and self.limit_s is not None:
            raise FallbackError(f"the deadline of {self.limit_s * 1000.0:g} ms passed while {doing}")

    def note_stage(self, name: str) -> None:
        """Add the time since the last stage ended to the stage ``name``."""
        now = self.now()
        self.stages_ms[name] = self.stages_ms.get(name, 0.0) + (now - self._noted) * 1000.0
        self._noted = now
