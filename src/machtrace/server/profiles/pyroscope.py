"""Requests of Pyroscope's agents: profiles with labels.

Source: ``docs/sources/reference-server-api/index.md`` and ``api/push/v1/push.proto`` of
github.com/grafana/pyroscope. A pprof profile is stored as it was sent; stacks in lines are stored
with a thread and a count each, as folded stacks.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections import Counter
from collections.abc import Iterator, Mapping

from machtrace.errors import FormatError
from machtrace.reports.plcrash.wire import Message
from machtrace.reports.profiles.functions import is_labelled
from machtrace.server.bodies import multipart
from machtrace.server.limits import BAD_REQUEST, TOO_LARGE, UNSUPPORTED, Limits, RefusedError
from machtrace.warehouse.ingest import Body

_NAME = re.compile(r"(?P<name>[^{}]{1,1000})(?:\{(?P<labels>[^{}]{0,10000})\})?")
_LABEL = re.compile(r'\s*(?P<key>[^=,"]{1,200})=\s*"?(?P<value>[^",]{0,1000})"?\s*')
_COUNT = re.compile(r"[0-9]{1,15}")
_APPS = ("service_name", "app", "application", "__name__")
_BUILDS = ("build", "service_version", "version", "service_git_ref")
_DEVICES = ("device", "instance", "hostname", "host", "pod")
_PROFILE = "profile"
_FOLDED = frozenset({"", "folded", "collapsed", "groups"})
_AS_SENT = frozenset({"pprof", "speedscope"})
_THREAD = "thread [0]"
"""The label of a stack whose thread is unknown."""
_DIGITS = {10: 1_000_000_000, 13: 1_000_000, 16: 1000, 19: 1}
"""By digits of a time since 1970: its unit in ns."""


def read_ingest(query: Mapping[str, str], data: bytes, content_type: str, limits: Limits) -> Body:
    """Return the profile of ``/ingest``.

    Args:
        query: ``name``, ``format``, ``from``; what else is sent has no meaning here.
        data: the body, decompressed.
        content_type: its type.
        limits: those of the server.

    Raises:
        RefusedError: it is malformed, or of another format.
    """
    name, labels = _named(query.get("name", ""))
    form = query.get("format", "")
    if content_type.lower().startswith("multipart/form-data"):
        parts = multipart(data, content_type, limits.parts)
        data = next((part.data for part in parts if part.name == _PROFILE), b"")
        form = form or "pprof"
    if not data:
        raise RefusedError(BAD_REQUEST, "a body without a profile")
    if form in _FOLDED or form == "lines":
        data = _folded(data, are_counted=form != "lines")
    elif form not in _AS_SENT:
        raise RefusedError(UNSUPPORTED, f"unknown format {form[:100]!r}; use folded, lines, pprof")
    return _body(data, {**labels, "__name__": name}, _time(query.get("from", "")))


def read_push(data: bytes, *, is_json: bool, limits: Limits) -> list[Body]:
    """Return the profiles of ``/push.v1.PusherService/Push``.

    Args:
        data: the body, decompressed.
        is_json: whether it is JSON, not a protocol buffer.
        limits: those of the server.

    Raises:
        RefusedError: it is malformed, or has too many profiles.
    """
    bodies: list[Body] = []
    for labels, profile in _of_json(data) if is_json else _of_message(data, limits):
        if len(bodies) == limits.parts:
            raise RefusedError(TOO_LARGE, f"more than {limits.parts} profiles")
        if profile:
            bodies.append(_body(profile, labels, 0))
    return bodies


def _of_json(data: bytes) -> Iterator[tuple[dict[str, str], bytes]]:
    try:
        series = json.loads(data).get("series") or []
        for each in series:
            labels = {str(one["name"]): str(one["value"]) for one in each.get("labels") or []}
            for sample in each.get("samples") or []:
                text = sample.get("rawProfile") or sample.get("raw_profile") or ""
                yield labels, b64decode(text, validate=True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Base64Error):
        raise RefusedError(BAD_REQUEST, "the request is no list of series in JSON") from None


def _of_message(data: bytes, limits: Limits) -> Iterator[tuple[dict[str, str], bytes]]:
    try:
        request = Message(memoryview(data), "push", most=limits.parts).checked()
        for series in map(Message.checked, request.messages(1)):
            labels = {
                each.text(1) or "": each.text(2) or ""
                for each in map(Message.checked, series.messages(1))
            }
            for sample in map(Message.checked, series.messages(2)):
                yield labels, sample.data(1) or b""
    except FormatError as error:
        raise RefusedError(BAD_REQUEST, f"the request is no PushRequest: {error}") from None


def _named(text: str) -> tuple[str, dict[str, str]]:
    """Return the name and the labels in ``my.app{env=staging}``."""
    match = _NAME.fullmatch(text.strip())
    if match is None:
        raise RefusedError(BAD_REQUEST, "name is like app{label=value}")
    labels: dict[str, str] = {}
    for part in filter(str.strip, (match["labels"] or "").split(",")):
        label = _LABEL.fullmatch(part)
        if label is None:
            raise RefusedError(BAD_REQUEST, "name is like app{label=value}")
        labels[label["key"].strip()] = label["value"].strip()
    return match["name"].strip(), labels


def _body(data: bytes, labels: Mapping[str, str], time: int) -> Body:
    app, build, device = (
        next((labels[name] for name in names if labels.get(name)), "")
        for names in (_APPS, _BUILDS, _DEVICES)
    )
    return Body("pyroscope", data, app, build, device, time)


def _time(text: str) -> int:
    """Return ns since 1970; 0 for a time in words."""
    is_number = text.isascii() and text.isdecimal()
    return int(text) * _DIGITS.get(len(text), 0) if is_number else 0


def _folded(data: bytes, *, are_counted: bool) -> bytes:
    """Return folded stacks, each with a thread, so that a stack of one function is one."""
    counts: Counter[str] = Counter()
    for line in data.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if not text:
            continue
        stack, count = text, "1"
        if are_counted:
            stack, *rest = text.rsplit(None, 1)
            count = rest[0] if rest else ""
        if _COUNT.fullmatch(count) is None:
            raise RefusedError(BAD_REQUEST, "a line is a stack and a count: one;two 3")
        counts[stack] += int(count)
    if not counts:
        raise RefusedError(BAD_REQUEST, "a body without a stack")
    start = "" if all(is_labelled(each.partition(";")[0]) for each in counts) else f"{_THREAD};"
    return "".join(f"{start}{stack} {count}\n" for stack, count in counts.items()).encode()
