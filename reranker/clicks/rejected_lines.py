"""Rejected lines of a click log, whose content is masked: they may have personal data."""

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
    """Return the beginning of a line with everything but known keys and brackets masked: one dot for each byte."""
    data = (sample if isinstance(sample, bytes) else sample.encode("utf-8", "replace"))[:_SHOWN]
    shown = bytearray(data.translate(_HIDDEN))
    for key in _KEYS.finditer(data):
        shown[key.start() : key.end()] = key.group().translate(_SPACES)
    return shown.decode("ascii")


class PrivateSink:
    """A reject sink that masks the content of each rejected line (`shape`) before it passes it on, and counts them."""

    def __init__(self, sink: RejectSink) -> None:
        self._sink = sink
        self.count = 0

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Pass on one rejected record."""
        self.count += 1
        self._sink.reject(line, offset, reason, shape(sample), kind=kind)
