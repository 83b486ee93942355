"""Reports put together by hand: for tests of what reads, groups and writes them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_frame import Adjustment, ReportedFrame, ReportedSymbol
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_process import ReportedException, ReportedProcess
from machtrace.model.reported_thread import ReportedThread
from machtrace.model.reported_tree import SampledNode, SampledTree
from machtrace.model.symbol import SourceLocation

PROGRAM = "/private/var/containers/Bundle/Application/1/Demo.app/Demo"
IMAGES = (
    ReportedImage(
        name="Demo",
        path=PROGRAM,
        uuid=UUID("d5bd0e97-65e0-3dbd-9e18-2e8f1a6f3c11"),
        arch="arm64",
        load_address=Avma(0x1_0000_0000),
        size=0x10_0000,
    ),
    ReportedImage(
        name="libsystem_kernel.dylib",
        path="/usr/lib/system/libsystem_kernel.dylib",
        uuid=UUID("a5d3b725-78c3-3e19-a765-cceb22355093"),
        arch="arm64e",
        load_address=Avma(0x1_8000_0000),
        size=0x10_0000,
    ),
    ReportedImage(
        name="Kit",
        path="/var/containers/Bundle/Application/1/Demo.app/Frameworks/Kit.framework/Kit",
        uuid=UUID("3f3cbf47-8f40-3f3a-ae6d-bb9f4a4ad0fd"),
        arch="arm64",
        load_address=Avma(0x1_1000_0000),
        size=0x10_0000,
    ),
)
"""The app, the system, and a framework of the app's."""
_APP, _SYSTEM, _KIT = range(3)


def made_frame(
    name: str,
    *,
    offset: int = 0x1000,
    line: int | None = None,
    is_inline: bool = False,
    details: dict[str, JsonValue] | None = None,
) -> ReportedFrame:
    """A frame; ``kit:`` and ``system:`` before the name say where, else it is the app's.

    An empty name is none.
    """
    where, colon, rest = name.partition(":")
    image = {"kit": _KIT, "system": _SYSTEM}.get(where if colon else "", _APP)
    known = rest if image != _APP else name
    return ReportedFrame(
        Avma((IMAGES[image].load_address or 0) + offset),
        image,
        ImageOffset(offset),
        Adjustment.RETURN,
        ReportedSymbol(known, 8) if known else None,
        None if line is None else SourceLocation("/src/demo.c", line),
        is_inline=is_inline,
        details=details or {},
    )


def made_thread(
    index: int,
    names: Sequence[str],
    *,
    crashed: bool = False,
    queue: str | None = None,
    details: dict[str, JsonValue] | None = None,
) -> ReportedThread:
    """A thread with frames of these names, innermost first; its id is 256 and its number."""
    return ReportedThread(
        index=index,
        id=0x100 + index,
        queue=queue,
        crashed=crashed,
        frames=tuple(made_frame(name) for name in names),
        details=details or {},
    )


def made_tree(
    nodes: Sequence[tuple[int | None, int, str]],
    *,
    thread: int | None = None,
    queue: str | None = None,
    notes: dict[int, str] | None = None,
) -> SampledTree:
    """A tree of rows (parent, samples, name); ``notes`` are said of nodes by their numbers."""
    said = notes or {}
    return SampledTree(
        nodes=tuple(
            SampledNode(
                parent,
                samples,
                made_frame(name, details={"samples": said[at]} if at in said else None),
            )
            for at, (parent, samples, name) in enumerate(nodes)
        ),
        thread=thread,
        queue=queue,
    )


def made_report(
    *threads: ReportedThread,
    trees: Sequence[SampledTree] = (),
    exception: str | None = "EXC_CRASH",
    version: str = "1.0",
) -> Report:
    """A report of these stacks."""
    return Report(
        kind=ReportKind.APPLE_IPS,
        process=ReportedProcess(name="Demo", pid=42, path=PROGRAM, version=version),
        exception=None if exception is None else ReportedException(type=exception),
        threads=threads,
        trees=tuple(trees),
        images=IMAGES,
    )
