"""What a reject file shows of a bad line of a click log: its shape, and none of its values."""

from __future__ import annotations

import re

from reranker.formats import RejectSink

_SHOWN = 200
_KEYS = re.compile(
    rb'"(action_name|actionName|query_id|queryId|timestamp|client_id|clientId|session_id|sessionId|user_id|userId|'
    rb"user_query|userQuery|application|event_attributes|eventAttributes|query_attributes|queryAttributes|"
    rb"query_response|queryResponse|query_response_id|query_response_hit_ids|query_response_objects_ids|"
    rb"query_response_object_ids|position|ordinal|index|object|object_id|objectId|_index|_id|_source|hits|"
    rb'query|session|user|time|results|clicks|doc|rank|event|ranking|type|item|items|fields|name|value)"\s*:'
)
_SPACES = bytes.maketrans(b"\t\r\n\v\f", b"     ")
_KEPT = b' {}[]:,"'
_HIDDEN = bytes(byte if byte in _KEPT else ord(" ") if byte in b"\t\r\n" else ord(".") for byte in range(256))


def shape(sample: str | bytes) -> str:
    """Return the beginning of a line with the names of known keys and its brackets; all else is a dot a byte."""
    data = (sample if isinstance(sample, bytes) else sample.encode("utf-8", "replace"))[:_SHOWN]
    shown = bytearray(data.translate(_HIDDEN))
    for found in _KEYS.finditer(data):
        shown[found.start() : found.end()] = found.group().translate(_SPACES)
    return shown.decode("ascii")


class PrivateSink:
    """Hands rejects on without the values of the line, and counts them.

    Parameters
    ----------
    sink : RejectSink
    """

    def __init__(self, sink: RejectSink) -> None:
        self._sink = sink
        self.count = 0

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Hand on one refused record."""
        self.count += 1
        self._sink.reject(line, offset, reason, shape(sample), kind=kind)
