"""Lines of frames: number, image, address, and what is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from machtrace.model.reported_frame import ReportedFrame
from machtrace.model.reported_image import ReportedImage
from machtrace.report.printable import printable


def frame_lines(frames: Sequence[ReportedFrame], images: Sequence[ReportedImage]) -> Iterator[str]:
    """A line a frame, innermost first."""
    for index, frame in enumerate(frames):
        image = None if frame.image is None else images[frame.image]
        name = "???" if image is None else printable(image.name) or "???"
        address = "???" if frame.address is None else f"{frame.address:#x}"
        yield f"{index:<4d}{name:<30s}\t{address:>18s} {_what(frame, image)}"


def _what(frame: ReportedFrame, image: ReportedImage | None) -> str:
    place = _place(frame)
    if frame.symbol is not None:
        name = printable(frame.symbol.name)
        mark = " [inlined]" if frame.is_inline else ""
        into = "" if frame.symbol.offset is None else f" + {frame.symbol.offset}"
        return f"{name}{mark}{into}{place}"
    if image is not None and frame.offset is not None:
        base = f"{image.load_address or 0:#x}"
        return f"{base} + {frame.offset}{place}" if image.size else f"???{place}"
    return f"???{place}"


def _place(frame: ReportedFrame) -> str:
    if frame.location is None:
        return ""
    file = printable(frame.location.path.rpartition("/")[2])
    return f" ({file})" if frame.location.line is None else f" ({file}:{frame.location.line})"
