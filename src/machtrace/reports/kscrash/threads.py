"""``threads``: frames in the images that hold them, rather than those that the report names.

Some reports name images that do not hold the address: a frame's image and symbol are accepted only
if the list of images agrees.
"""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    Adjustment,
    JsonValue,
    ReportedFrame,
    ReportedImage,
    ReportedRegister,
    ReportedRegisters,
    ReportedSymbol,
    ReportedThread,
)
from machtrace.reports.consume import ObjectReader
from machtrace.reports.images import ImageRanges

_THROWN = frozenset({"nsexception", "cpp_exception", "user_reported", "user"})
"""Kinds of errors whose stack is the exception's, or KSCrash's caller: return addresses only."""


class ThreadReader:
    """Reads the threads of one report."""

    def __init__(self, images: Sequence[ReportedImage], warnings: list[str]) -> None:
        self.images = list(images)
        """The report's, followed by those that only frames name."""
        self._ranges = ImageRanges(images)
        self._begins = {image.load_address for image in images}
        self._mentioned: dict[tuple[int | None, str], int] = {}
        self._warnings = warnings
        self._wrong = 0

    def read(self, crash: ObjectReader, kind: str | None) -> tuple[ReportedThread, ...]:
        """Read all threads in order; old reports and crashes in KSCrash have only one."""
        is_thrown = kind in _THROWN
        entries = crash.objects("threads")
        for key in ("thread", "crashed_thread"):
            if not entries and isinstance(crash.left.get(key), dict):
                entries = [crash.left.pop(key)]
        return tuple(
            self._thread(
                place,
                ObjectReader.of(one, f"threads[{place}]", self._warnings),
                is_thrown=is_thrown,
            )
            for place, one in enumerate(entries)
        )

    def warn(self) -> None:
        """Warn about the number of frames with rejected names."""
        if self._wrong:
            self._warnings.append(
                f"{self._wrong} frames are not in the image they name; their names were rejected"
            )

    def _thread(self, place: int, thread: ObjectReader, *, is_thrown: bool) -> ReportedThread:
        index = thread.integer("index")
        crashed = bool(thread.boolean("crashed"))
        innermost = Adjustment.RETURN if crashed and is_thrown else Adjustment.EXACT
        return ReportedThread(
            index=place if index is None else index,
            name=thread.text("name"),
            queue=thread.text("dispatch_queue"),
            crashed=crashed,
            frames=self._frames(_contents(thread), innermost),
            registers=_registers(thread),
            details=thread.details(),
        )

    def _frames(
        self, contents: Sequence[JsonValue], innermost: Adjustment
    ) -> tuple[ReportedFrame, ...]:
        frames: list[ReportedFrame] = []
        for place, value in enumerate(contents):
            entry = ObjectReader.of(value, f"frame {place}", self._warnings)
            adjustment = Adjustment.RETURN if frames else innermost
            frames.append(self.frame(entry, adjustment))
        return tuple(frames)

    def frame(self, entry: ObjectReader, adjustment: Adjustment) -> ReportedFrame:
        """Read a frame, and find the image that holds it."""
        signed = entry.integer("instruction_addr")
        address = None if signed is None else self._ranges.unsigned(signed)
        index = None if address is None else self._find(address, adjustment, entry)
        details: dict[str, JsonValue] = {}
        if signed != address:
            details["instruction_addr"] = signed
        offset = symbol = None
        if address is None or index is None:
            symbol = _symbol(entry, address)
        else:
            image = self.images[index]
            if image.load_address is None:
                entry.left.pop("object_name", None)
                symbol = _symbol(entry, address)
            elif self._agrees(entry, image):
                offset = ImageOffset(address - image.load_address)
                entry.left.pop("object_name", None)
                entry.left.pop("object_addr", None)
                symbol = _symbol(entry, address)
            else:
                offset = ImageOffset(address - image.load_address)
                self._wrong += 1
        return ReportedFrame(
            None if address is None else Avma(address),
            index,
            offset,
            adjustment,
            symbol,
            details=details | dict(entry.details()),
        )

    def _find(self, address: int, adjustment: Adjustment, entry: ObjectReader) -> int | None:
        """Return the image that holds ``address``, else the one that only the frame names.

        Profiles, and reports with few of their images, have it in the frame alone. Its load address
        is only believed if it is no other image's.
        """
        # A call can be the last instruction of its image.
        index = self._ranges.find(address - (adjustment is Adjustment.RETURN))
        name, base = entry.left.get("object_name"), entry.left.get("object_addr")
        if index is not None or not isinstance(name, str) or not name:
            return index
        if type(base) is not int or not 0 < base <= address or base in self._begins:
            base = None
        key = (base, name)
        if key not in self._mentioned:
            self._mentioned[key] = len(self.images)
            path = name if "/" in name else ""
            uuid = ObjectReader(dict(entry.left), "", []).uuid("object_uuid")
            self.images.append(
                ReportedImage(
                    uuid=uuid,
                    name=name.rpartition("/")[2],
                    path=path,
                    load_address=None if base is None else Avma(base),
                )
            )
        return self._mentioned[key]

    def _agrees(self, entry: ObjectReader, image: ReportedImage) -> bool:
        """Return whether the frame's fields agree with the image."""
        named, base = entry.left.get("object_name"), entry.left.get("object_addr")
        if isinstance(named, str) and named.rpartition("/")[2] != image.name:
            return False
        if isinstance(base, int) and base not in (0, image.load_address):
            return False
        start = entry.left.get("symbol_addr")
        if not isinstance(start, int) or start == 0 or image.size is None:
            return True
        return image.holds(start)


def _contents(thread: ObjectReader) -> Sequence[JsonValue]:
    """Return the frames; before version 1 they were the thread's own list."""
    if isinstance(thread.left.get("backtrace"), list):
        return thread.objects("backtrace")
    return thread.inner("backtrace").objects("contents")


def _symbol(entry: ObjectReader, address: int | None) -> ReportedSymbol | None:
    name = entry.text("symbol_name")
    if name is None:
        return None
    start = entry.left.get("symbol_addr")
    into = None
    if isinstance(start, int) and address is not None and 0 < start <= address:
        into = address - start
        del entry.left["symbol_addr"]
    return ReportedSymbol(name, into)


def _registers(thread: ObjectReader) -> ReportedRegisters | None:
    listed = thread.left.get("registers")
    if not isinstance(listed, dict):
        return None
    registers = ObjectReader.of(thread.left.pop("registers"), f"{thread.where} registers", [])
    result: list[ReportedRegister] = []
    for group in ("basic", "exception"):
        inner = registers.inner(group)
        details: dict[str, JsonValue] = {} if group == "basic" else {"group": group}
        for name in tuple(inner.left):
            value = inner.integer(name)
            if value is not None:
                result.append(ReportedRegister(name, value, details=details))
    return ReportedRegisters(registers=tuple(result), details=registers.details())
