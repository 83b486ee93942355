"""Sentry's envelopes: a line of JSON, then for each item a line of JSON and its payload."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from machtrace.server.limits import BAD_REQUEST, TOO_LARGE, RefusedError
from machtrace.warehouse.ingest import Body

STORED = frozenset({"attachment", "event", "profile", "profile_chunk"})
"""Types of items that are stored; the others are left out."""
_NO_REPORTS = frozenset({"event.minidump", "event.view_hierarchy"})
"""Types of attachments of which there is no reader."""
_KEY = re.compile(r"(?:^|[\s,])sentry_key=([^\s,]+)")
_ID = re.compile(r"[0-9a-fA-F-]{32,36}")
_MAX_NAME_LENGTH = 200


class Envelope(NamedTuple):
    """The stored items of an envelope."""

    id: str
    """That of its event; empty if it has none."""
    bodies: tuple[Body, ...]
    ignored: tuple[str, ...]
    """The types of the items that are left out."""


def read_envelope(data: bytes, project: str, most: int) -> Envelope:
    """Return the items of an envelope.

    Args:
        data: the envelope, decompressed.
        project: of its address.
        most: the number of items.

    Raises:
        RefusedError: it is malformed.
    """
    line, at = _line(data, 0)
    head = _object(line, "header")
    identity = head.get("event_id")
    event = identity if isinstance(identity, str) and _ID.fullmatch(identity) else ""
    bodies: list[Body] = []
    ignored: list[str] = []
    while at < len(data):
        line, at = _line(data, at)
        if not line.strip():
            continue
        if len(bodies) + len(ignored) == most:
            raise RefusedError(TOO_LARGE, f"more than {most} items")
        item = _object(line, "item")
        length = item.get("length")
        if length is None:
            payload, at = _line(data, at)
        else:
            is_valid = isinstance(length, int) and not isinstance(length, bool)
            if not is_valid or not 0 <= length <= len(data) - at:
                raise RefusedError(BAD_REQUEST, "an item's length is not that of its payload")
            payload = data[at : at + length]
            at += length
            if data[at : at + 1] == b"\n":
                at += 1
        kind = str(item.get("type", ""))
        if kind not in STORED or not _may_be_report(item):
            ignored.append(str(item.get("attachment_type") or kind))
            continue
        label = str(item.get("filename") or f"{kind}.json")
        name = f"sentry/{project}/{event}/{label}"[:_MAX_NAME_LENGTH]
        bodies.append(Body(name, payload))
    return Envelope(event, tuple(bodies), tuple(ignored))


def envelope_key(header: str) -> str:
    """Return the key in ``X-Sentry-Auth``; empty if there is none."""
    match = _KEY.search(header)
    return "" if match is None else match[1]


def _may_be_report(item: dict[str, Any]) -> bool:
    """Return whether an item may be a report: pictures and minidumps are none."""
    is_picture = str(item.get("content_type", "")).startswith("image/")
    return not is_picture and item.get("attachment_type") not in _NO_REPORTS


def _line(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(b"\n", at)
    return (data[at:], len(data)) if end < 0 else (data[at:end], end + 1)


def _object(line: bytes, part: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RefusedError(BAD_REQUEST, f"the {part} of an envelope is no JSON object")
    return value
