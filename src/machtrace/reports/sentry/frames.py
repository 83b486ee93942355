"""Frames of Sentry: with an address, with a function and a file alone, or both.

Sources: develop.sentry.dev, *Stack Trace Interface*; relay's ``protocol/stacktrace.rs``. Frames are
listed outermost first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    Adjustment,
    JsonValue,
    ReportedFrame,
    ReportedImage,
    ReportedRegister,
    ReportedRegisters,
    ReportedSymbol,
)
from machtrace.model.symbol import SourceLocation
from machtrace.reports.consume import ObjectReader
from machtrace.reports.images import ImageRanges, ListedImages
from machtrace.reports.sentry.facts import number_of

_RELATIVE = "rel:"
_UNNAMED = frozenset({"", "<redacted>", "<unknown>", "?"})
_ADJUSTMENTS = {
    "all": (Adjustment.RETURN, Adjustment.RETURN),
    "all_but_first": (Adjustment.EXACT, Adjustment.RETURN),
    "none": (Adjustment.ALREADY_ADJUSTED, Adjustment.ALREADY_ADJUSTED),
}
"""Adjustments of the innermost frame and of the others, by ``instruction_addr_adjustment``."""


class FrameReader:
    """Reads the frames of one report."""

    def __init__(self, images: Sequence[ReportedImage], places: Mapping[int, int]) -> None:
        """Take the images.

        Args:
            images: the listed ones.
            places: their indices, by their number in the report's list.
        """
        self.images = ListedImages(images)
        """Also those that only frames name."""
        self._ranges = ImageRanges(images)
        self._places = places
        self._by_start = {
            image.load_address: index
            for index, image in enumerate(images)
            if image.load_address is not None
        }

    def stack(
        self, stack: ObjectReader, innermost: Adjustment
    ) -> tuple[tuple[ReportedFrame, ...], ReportedRegisters | None]:
        """Consume the frames, innermost first, and the registers of a stack.

        Args:
            stack: the stack trace.
            innermost: how the address of the innermost frame is, if the stack does not state it.
        """
        stated = stack.left.get("instruction_addr_adjustment")
        outer = Adjustment.RETURN
        if isinstance(stated, str) and stated in _ADJUSTMENTS:
            innermost, outer = _ADJUSTMENTS[stated]
            del stack.left["instruction_addr_adjustment"]
        frames: list[ReportedFrame] = []
        for place, value in enumerate(reversed(stack.objects("frames"))):
            if value is None:
                continue
            entry = ObjectReader.of(value, f"frame {place}", stack.warnings)
            frames.append(self.frame(entry, outer if frames else innermost))
        return tuple(frames), _registers(stack)

    def frame(self, entry: ObjectReader, adjustment: Adjustment) -> ReportedFrame:
        """Read a frame, and find the image that holds it."""
        signed = number_of(entry, "instruction_addr")
        base = number_of(entry, "image_addr")
        if entry.boolean("adjust_instruction_addr") is False and adjustment is Adjustment.RETURN:
            adjustment = Adjustment.ALREADY_ADJUSTED
        details: dict[str, JsonValue] = {}
        address: int | None = None
        index: int | None = None
        offset: ImageOffset | None = None
        if signed is not None and self._is_relative(entry):
            mode = str(entry.left.pop("addr_mode"))
            index, offset = self._places[int(mode[len(_RELATIVE) :])], ImageOffset(signed)
            start = self.images.base(index)
            address = None if start is None else start + offset
        elif signed is not None:
            address = self._ranges.unsigned(signed)
            if signed != address:
                details["instruction_addr"] = signed
            index = self._find(address, base, adjustment, entry)
            offset = self.images.offset(index, address)
        symbol = _symbol(entry, address)
        return ReportedFrame(
            None if address is None else Avma(address),
            index,
            offset,
            adjustment if signed is not None else Adjustment.UNKNOWN,
            symbol,
            _location(entry),
            details=details | dict(entry.details()),
        )

    def _is_relative(self, entry: ObjectReader) -> bool:
        mode = entry.left.get("addr_mode")
        if not isinstance(mode, str) or not mode.startswith(_RELATIVE):
            return False
        digits = mode[len(_RELATIVE) :]
        return digits.isdecimal() and len(digits) < 10 and int(digits) in self._places  # noqa: PLR2004 - so that it is a small number

    def _find(
        self, address: int, base: int | None, adjustment: Adjustment, entry: ObjectReader
    ) -> int | None:
        # A call can be the last instruction of its image.
        index = self._ranges.find(address - (adjustment is Adjustment.RETURN))
        if index is None and base is not None and base in self._by_start and base <= address:
            unsized = self._by_start[Avma(base)]
            index = unsized if self.images.image(unsized).size is None else None
        package = entry.left.get("package")
        if index is not None:
            if isinstance(package, str) and package == self.images.image(index).path:
                del entry.left["package"]
            return index
        if not isinstance(package, str) or not package:
            return None
        index = self.images.find(package.replace("\\", "/").rpartition("/")[2], address)
        if self.images.base(index) is None and base is not None and 0 < base <= address:
            self.images.set_base(index, Avma(base))
        return index


def _symbol(entry: ObjectReader, address: int | None) -> ReportedSymbol | None:
    raw = entry.text("raw_function")
    name = raw or entry.text("function")
    if name is None or name in _UNNAMED:
        return None
    start, into = number_of(entry, "symbol_addr"), None
    if start is not None and address is not None and 0 < start <= address:
        into = address - start
    module = entry.left.get("module")
    if address is None and isinstance(module, str) and module:
        name = f"{module}.{name}"
    return ReportedSymbol(name, into)


def _location(entry: ObjectReader) -> SourceLocation | None:
    path = entry.text("abs_path") or entry.text("filename")
    if not path:
        return None
    line, column = entry.integer("lineno"), entry.integer("colno")
    return SourceLocation(path, line or None, column or None)


def _registers(stack: ObjectReader) -> ReportedRegisters | None:
    values = stack.inner("registers")
    registers = tuple(
        ReportedRegister(name, value)
        for name in tuple(values.left)
        if (value := number_of(values, name)) is not None
    )
    return ReportedRegisters(registers=registers) if registers else None
