"""The page of a stack: its frames, and how many reports go through each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from machtrace.frozen import dataclass
from machtrace.model.text import counted
from machtrace.reports.html.markup import element, text
from machtrace.server.limits import BAD_REQUEST, NOT_FOUND, RefusedError
from machtrace.server.pages.frame import page
from machtrace.server.pages.frames import Frame, frame_table, read_frames
from machtrace.server.pages.issue_list import ISSUES
from machtrace.server.pages.parts import Column, address, facts, link, moment, shown, table
from machtrace.server.pages.through import reports_through, stored_stack
from machtrace.server.service import Service
from machtrace.warehouse.warehouse import Warehouse

_STACKS = 100
_REPORTS = 20
_FACTS = """
SELECT kind, role, unit, count(DISTINCT key) AS reports, sum(weight)::BIGINT AS weight,
    count(DISTINCT nullif(device, '')) AS devices, min(time) AS first, max(time) AS last
FROM stacks_of_reports WHERE stack = $key GROUP BY ALL ORDER BY reports DESC
"""
_LATEST = """
SELECT key, time, app, version, build, os, string_agg(DISTINCT role, ', ' ORDER BY role) AS role
FROM stacks_of_reports WHERE stack = $key GROUP BY ALL ORDER BY time DESC, key LIMIT $most
"""
_THROUGH = """
SELECT stack, function, image, count(DISTINCT key) AS reports, sum(weight)::BIGINT AS weight
FROM stacks_of_reports WHERE {condition}
GROUP BY ALL ORDER BY reports DESC, weight DESC, stack LIMIT {most}
"""
_ROLES = (
    Column("Role"),
    Column("Kind"),
    Column("Reports", is_number=True),
    Column("Devices", is_number=True),
    Column("Weight", is_number=True),
    Column("First"),
    Column("Last"),
)
_OTHERS = (
    Column("Innermost function"),
    Column("Image"),
    Column("Stack"),
    Column("Reports", is_number=True),
    Column("Weight", is_number=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    frames: Sequence[Frame]
    through: Sequence[int]
    roles: Sequence[dict[str, Any]]
    latest: Sequence[dict[str, Any]]
    issues: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Through:
    frame: Frame
    condition: str
    rows: Sequence[dict[str, Any]]


async def stack_page(service: Service, request: Request) -> Response:
    """Return a stack by its key."""
    key = request.path_params["key"]
    name, body = await service.reading(request, _stack_made, key)
    return page(service, request, f"Stack {name}", body, section=ISSUES)


async def through_page(service: Service, request: Request) -> Response:
    """Return the stacks through one frame of a stack."""
    key, depth = request.path_params["key"], request.path_params["depth"]
    if not depth.isdecimal() or len(depth) > 6:  # noqa: PLR2004 - deeper than any
        raise RefusedError(BAD_REQUEST, "a frame is a number, from 1, the outermost one")
    name, body = await service.reading(request, _through_made, key, int(depth))
    return page(service, request, f"Stacks through {name}", body, section=ISSUES)


def _stack_made(warehouse: Warehouse, key: str) -> tuple[str, str]:
    """Return the name of a stack, and the content of its page."""
    content = _stack(warehouse, key)
    name = _name(content.frames[0])[:200] if content.frames else "without frames"
    return name, _body(content, key)


def _through_made(warehouse: Warehouse, key: str, depth: int) -> tuple[str, str]:
    """Return the name of a frame, and the content of the page of the stacks through it."""
    content = _through(warehouse, key, depth)
    rows = [
        [
            link(
                f"/stacks/{row['stack'].hex()}",
                shown(row["function"] or "no name", 200),
                class_="mono",
            ),
            shown(row["image"] or "", 60),
            f"<code>{row['stack'].hex()[:12]}</code>",
            f"{row['reports']:,}",
            f"{row['weight']:,}",
        ]
        for row in content.rows
    ]
    name = _name(content.frame)
    flame = link(
        address("/flame", where=content.condition), "Flame graph of these", class_="button"
    )
    back = link(f"/stacks/{key}", "Back to the stack", class_="button")
    head = element("p", f"{shown(content.frame.image, 80)} · frame {depth} from the outermost")
    note = counted(len(rows), "stack") if len(rows) < _STACKS else f"The {_STACKS} most frequent"
    body = head + element("p", f"{flame} {back}") + element("p", note, class_="note")
    body += table(_OTHERS, rows, "Stacks", is_cards=True)
    return name[:200], body


def _stack(warehouse: Warehouse, key: str) -> _Stack:
    stack = stored_stack(warehouse, key)
    own = bytes.fromhex(key)
    return _Stack(
        frames=read_frames(stack.segment, [stack.node])[stack.node],
        through=reports_through(warehouse, stack),
        roles=warehouse.query(_FACTS, {"key": own}).to_pylist(),
        latest=warehouse.query(_LATEST, {"key": own, "most": _REPORTS}).to_pylist(),
        issues=warehouse.issues_of_stack(own),
    )


def _through(warehouse: Warehouse, key: str, depth: int) -> _Through:
    stack = stored_stack(warehouse, key)
    if not 1 <= depth <= len(stack.intervals):
        raise RefusedError(NOT_FOUND, "the stack has no such frame")
    frames = read_frames(stack.segment, [stack.node])[stack.node]
    condition = stack.condition(depth)
    rows = warehouse.query(_THROUGH.format(condition=condition, most=_STACKS)).to_pylist()
    return _Through(frame=frames[len(frames) - depth], condition=condition, rows=rows)


def _name(frame: Frame) -> str:
    return (frame.calls[0].function if frame.calls else "") or frame.place


def _body(content: _Stack, key: str) -> str:
    issues = ", ".join(link(f"/issues/{text(issue)}", text(issue)) for issue in content.issues)
    most = content.roles[0] if content.roles else None
    reports = max((row["reports"] for row in content.roles), default=0)
    head = facts(
        (
            ("Reports", f"{reports:,}"),
            ("Frames", f"{len(content.frames):,}"),
            ("Issue", issues),
            ("First seen", moment(min(row["first"] for row in content.roles)) if most else ""),
            ("Last seen", moment(max(row["last"] for row in content.roles)) if most else ""),
            ("Key", f"<code>{text(key)}</code>"),
        )
    )
    depth = len(content.frames)
    through = {
        depth - at: link(f"/stacks/{key}/through/{at}", f"{count:,}")
        for at, count in enumerate(content.through, 1)
    }
    stack = frame_table(content.frames, "Frames", through=through)
    roles = [
        [
            shown(row["role"], 40),
            shown(row["kind"], 40),
            f"{row['reports']:,}",
            f"{row['devices']:,}",
            f"{row['weight']:,} <small>{shown(row['unit'], 20)}</small>",
            moment(row["first"]),
            moment(row["last"]),
        ]
        for row in content.roles
    ]
    latest = [
        [
            link(f"/reports/{row['key'].hex()}", row["key"].hex()[:12], class_="mono"),
            moment(row["time"]),
            shown(row["role"], 40),
            shown(row["app"] or "", 60),
            shown(f"{row['version'] or ''} ({row['build'] or ''})", 40),
            shown(row["os"] or "", 40),
        ]
        for row in content.latest
    ]
    columns = [Column(name) for name in ("Report", "Time", "Role", "App", "Version", "System")]
    return (
        head
        + stack
        + element("h2", "Where reports have it")
        + table(_ROLES, roles, "Roles", is_cards=True)
        + element("h2", "Latest reports")
        + table(columns, latest, "Latest reports", is_cards=True)
    )
