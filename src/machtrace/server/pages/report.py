"""The page of a report: facts, all threads, and how far its bytes are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from machtrace.frozen import dataclass
from machtrace.model.text import counted
from machtrace.reports.html.markup import element, folded, text
from machtrace.server.limits import NOT_FOUND, RefusedError
from machtrace.server.pages.frame import SEE_OTHER, page
from machtrace.server.pages.frames import BUDGET, Frame, frame_table, read_frames
from machtrace.server.pages.issue_list import ISSUES
from machtrace.server.pages.parts import Column, address, bounded, facts, link, moment, shown, table
from machtrace.server.pages.signing_in import may
from machtrace.server.service import Service
from machtrace.warehouse.record_state import RecordState
from machtrace.warehouse.warehouse import Warehouse

_KEY = re.compile(r"[0-9a-f]{32}")
_THREADS, _SAMPLES = 1000, 12
_REST = 30_000
"""Bytes of HTML besides those of one stack."""
_REPORT = "SELECT * FROM reports WHERE key = $key"
_OF_RECORD = (
    "SELECT key, kind, app, time FROM reports WHERE raw = $raw AND raw_offset = $at ORDER BY key"
)
_STACKS = """
SELECT o.thread, o.role, o.name, o.unit, o.weight, o.node, s.key
FROM occurrences o LEFT JOIN stacks s USING (segment, node)
WHERE o.segment = $segment AND o.report = $report
ORDER BY o.role = 'sample', CASE WHEN o.role = 'sample' THEN -o.weight ELSE o.thread END,
    o.role != 'crashed' LIMIT $most
"""
_TOTALS = """
SELECT count(*) AS stacks, sum(weight)::BIGINT AS weight FROM occurrences
WHERE segment = $segment AND report = $report AND role = 'sample'
"""
_STATES = {
    RecordState.STORED: "It is stored, and is going to be read in a moment.",
    RecordState.PARSED: "It was read, and has no reports that were not there before.",
    RecordState.REMOVED: "Its bytes were removed.",
    RecordState.QUARANTINED: "It could not be read, and is in quarantine.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    row: dict[str, Any]
    stacks: Sequence[dict[str, Any]]
    frames: dict[int, list[Frame]]
    samples: int
    weight: int
    issues: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    state: RecordState
    reasons: Sequence[str]
    reports: Sequence[dict[str, Any]]


async def report_page(service: Service, request: Request) -> Response:
    """Return a report by its key, or what received bytes became by their identifier."""
    name = request.path_params["report"]
    if _KEY.fullmatch(name):
        thread = request.query_params.get("thread", "")
        chosen = int(thread) if thread.isdecimal() and len(thread) < 10 else None  # noqa: PLR2004 - 32 bits
        title, body = await service.reading(request, _made, name, chosen, may(service, request))
        return page(service, request, title, body, section=ISSUES)
    record = await service.reading(request, _record, name)
    if len(record.reports) == 1 and not record.reasons:
        return RedirectResponse(f"/reports/{record.reports[0]['key'].hex()}", SEE_OTHER)
    body = _record_body(record, name, may_load=may(service, request))
    return page(service, request, f"Received bytes {name}", body, section=ISSUES)


def _made(
    warehouse: Warehouse,
    key: str,
    chosen: int | None,
    may_load: bool,  # noqa: FBT001 - of a request
) -> tuple[str, str]:
    """Return the title and the content of the page."""
    content = _read(warehouse, bytes.fromhex(key))
    return _title(content.row), _body(content, key, chosen, may_load=may_load)


def _read(warehouse: Warehouse, key: bytes) -> _Report:
    rows = warehouse.query(_REPORT, {"key": key}).to_pylist()
    if not rows:
        raise RefusedError(NOT_FOUND, f"no report has the key {key.hex()}")
    row = rows[0]
    own = {"segment": row["segment"], "report": row["report"]}
    stacks = warehouse.query(_STACKS, own | {"most": _THREADS}).to_pylist()
    total = warehouse.query(_TOTALS, own).to_pylist()[0]
    samples = [stack for stack in stacks if stack["role"] == "sample"][:_SAMPLES]
    others = [stack for stack in stacks if stack["role"] != "sample"]
    used = others + samples
    frames = read_frames(warehouse.stacks_of(row["segment"]), {each["node"] for each in used})
    subjects = [other["key"] for other in others if other["role"] == "subject" and other["key"]]
    issues = [name for subject in subjects for name in warehouse.issues_of_stack(subject)]
    return _Report(
        row=row,
        stacks=used,
        frames=frames,
        samples=total["stacks"],
        weight=total["weight"] or 0,
        issues=[name for name in issues if name.startswith(f"{row['kind']}-")],
    )


def _record(warehouse: Warehouse, name: str) -> _Record:
    state = warehouse.record_state(name)
    if state is None:
        raise RefusedError(NOT_FOUND, f"no report is called {name[:100]}")
    log, _, offset = name.partition("-")
    rows = warehouse.query(_OF_RECORD, {"raw": f"{log}.log", "at": int(offset)}).to_pylist()
    return _Record(state=state[0], reasons=state[1], reports=rows)


def _title(row: dict[str, Any]) -> str:
    kind = str(row["kind"] or "report").capitalize()
    exception = f" · {row['exception']}" if row["exception"] else ""
    return f"{kind} of {row['app'] or 'an unknown app'}{exception}"[:200]


def _raw(record: str, *, may_load: bool) -> str:
    if may_load:
        return link(f"/v1/reports/{record}/raw", "Download", download="")
    return '<span class="note">for tokens of scope admin</span>'


def _body(content: _Report, key: str, chosen: int | None, *, may_load: bool) -> str:
    row = content.row
    build = f" ({row['build']})" if row["build"] else ""
    record = f"{row['raw'].removesuffix('.log')}-{row['raw_offset']}" if row["raw"] else ""
    issues = ", ".join(link(f"/issues/{text(issue)}", text(issue)) for issue in content.issues)
    head = facts(
        (
            ("Issue", issues),
            ("Time", moment(row["time"] or row["received"])),
            ("Received", moment(row["received"])),
            ("App", _fact(row["app"])),
            ("Version", _fact(f"{row['version'] or ''}{build}".strip())),
            ("System", _fact(row["os"])),
            ("Model", _fact(row["model"])),
            ("Device", _fact(row["device"])),
            ("Exception", _fact(row["exception"])),
            ("Format", _fact(row["format"])),
            ("Incident", _fact(row["incident"])),
            ("Key", f"<code>{text(key)}</code>"),
            ("Received bytes", _raw(record, may_load=may_load) if record else ""),
        )
    )
    where = f"hex(key) = '{key.upper()}' AND role != 'subject'"
    actions = element("p", link(address("/flame", where=where), "Flame graph", class_="button"))
    return head + actions + _threads(content, key, chosen)


def _fact(value: str | None) -> str:
    return shown(value, 120) if value else ""


def _threads(content: _Report, key: str, chosen: int | None) -> str:
    """Return the stacks, of which those that are too many are links to them alone."""
    stacks = list(content.stacks)
    crashed = {stack["node"] for stack in stacks if stack["role"] == "crashed"}
    parts: list[str] = []
    left: list[str] = []
    size = 0
    for number, each in enumerate(stacks):
        is_same = each["role"] == "subject" and each["node"] in crashed
        if is_same or chosen not in (None, number):
            continue
        written = _thread(content, each, is_open=chosen is not None or len(stacks) == 1)
        size += len(written.encode())
        if size <= BUDGET + _REST or not parts:
            parts.append(written)
            continue
        size -= len(written.encode())
        name = _thread_name(each)
        left.append(element("li", link(address(f"/reports/{key}", thread=number), name)))
    head = element("h2", "Threads" if not content.samples else "Stacks")
    if chosen is not None:
        head += element("p", link(f"/reports/{key}", "All threads"))
    if content.samples:
        count = counted(content.samples, "sampled stack")
        note = f"{count}, of weight {content.weight:,}; the heaviest are here."
        head += element("p", note, class_="note")
    if left:
        shown_links = bounded(left, _REST)
        more = counted(len(left) - len(shown_links), "more") if len(left) > len(shown_links) else ""
        parts.append(element("h3", "Further threads"))
        parts.append(element("ul", "".join(shown_links) + element("li", more), class_="columns"))
    return head + ("".join(parts) or element("p", "The report has no stacks.", class_="empty"))


def _thread(content: _Report, row: dict[str, Any], *, is_open: bool) -> str:
    name, frames = _thread_name(row), content.frames[row["node"]]
    summary = f"<b>{name}</b> <small>{counted(len(frames), 'frame')}</small>"
    if row["key"]:
        summary += " " + link(f"/stacks/{row['key'].hex()}", "stack", class_="aside")
    is_subject = row["role"] in ("crashed", "subject")
    return folded(
        summary, frame_table(frames, name), is_open=is_open or is_subject, class_="thread"
    )


def _thread_name(row: dict[str, Any]) -> str:
    role = row["role"]
    weight = f"{row['weight']:,} {row['unit']}" if role == "sample" else ""
    number = f"Thread {row['thread']}" if row["thread"] >= 0 else ""
    known = {"subject": "Subject of the report", "crashed": "crashed", "main": "main"}
    parts = (number, known.get(role, ""), shown(row["name"], 80) if row["name"] else "", weight)
    return " · ".join(part for part in parts if part) or "Stack"


def _record_body(record: _Record, name: str, *, may_load: bool) -> str:
    state = (
        "Its reports are below."
        if record.reports
        else _STATES.get(record.state, record.state.value)
    )
    if record.reasons:
        state = _STATES[RecordState.QUARANTINED]
    parts = [element("p", text(state), role="status")]
    parts += [element("p", shown(reason, 2000), class_="problem") for reason in record.reasons[:50]]
    parts.append(element("p", f"Received bytes: {_raw(name, may_load=may_load)}"))
    if record.reports:
        rows = [
            [
                link(f"/reports/{row['key'].hex()}", row["key"].hex()[:12], class_="mono"),
                shown(row["kind"], 40),
                shown(row["app"] or "", 60),
                moment(row["time"]) if row["time"] else "",
            ]
            for row in record.reports[:500]
        ]
        columns = [Column(each) for each in ("Report", "Kind", "App", "Time")]
        parts.append(table(columns, rows, "Reports", is_cards=True))
    return "".join(parts)
