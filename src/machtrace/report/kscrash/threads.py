"""``threads``: frames with the images that hold them, not those that the report names.

Reports exist whose frames have the names of other images than the address is in: what a frame says
of its image and symbol is a hint, believed only where the list of images agrees.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.json_value import JsonValue
from machtrace.model.reported_frame import Adjustment, ReportedFrame, ReportedSymbol
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_thread import ReportedRegister, ReportedRegisters, ReportedThread
from machtrace.report.taking import Taking


class ThreadReader:
    """Reads the threads of one report."""

    def __init__(self, images: Sequence[ReportedImage], warnings: list[str]) -> None:
        self._images = images
        self._warnings = warnings
        self._wrong = 0
        placed = sorted(
            (image.load_address, index)
            for index, image in enumerate(images)
            if image.load_address is not None
        )
        self._starts = [start for start, _ in placed]
        self._indices = [index for _, index in placed]

    def read(self, crash: Taking) -> tuple[ReportedThread, ...]:
        """All threads, in the report's order; of old reports the only one."""
        given = crash.objects("threads")
        if not given and isinstance(crash.left.get("thread"), dict):
            given = [crash.left.pop("thread")]
        return tuple(
            self._thread(place, Taking.of(one, f"threads[{place}]", self._warnings))
            for place, one in enumerate(given)
        )

    def warn(self) -> None:
        """Say how many frames had names that were not believed."""
        if self._wrong:
            self._warnings.append(
                f"{self._wrong} frames name another image than the one that holds their address;"
                " their names were not believed"
            )

    def _thread(self, place: int, thread: Taking) -> ReportedThread:
        index = thread.integer("index")
        return ReportedThread(
            index=place if index is None else index,
            name=thread.text("name"),
            queue=thread.text("dispatch_queue"),
            crashed=bool(thread.boolean("crashed")),
            frames=self._frames(thread.inner("backtrace")),
            registers=_registers(thread),
            details=thread.details(),
        )

    def _frames(self, backtrace: Taking) -> tuple[ReportedFrame, ...]:
        found: list[ReportedFrame] = []
        for place, one in enumerate(backtrace.objects("contents")):
            entry = Taking.of(one, f"frame {place}", self._warnings)
            adjustment = Adjustment.RETURN if found else Adjustment.EXACT
            found.append(self._frame(entry, adjustment))
        return tuple(found)

    def _frame(self, entry: Taking, adjustment: Adjustment) -> ReportedFrame:
        address = entry.integer("instruction_addr")
        index = None if address is None else self._find(address)
        if address is None or index is None:
            return ReportedFrame(
                None if address is None else Avma(address),
                None,
                None,
                adjustment,
                _symbol(entry, address),
                details=entry.details(),
            )
        image = self._images[index]
        base = image.load_address or 0
        symbol = None
        if self._agrees(entry, image):
            entry.left.pop("object_name", None)
            entry.left.pop("object_addr", None)
            symbol = _symbol(entry, address)
        else:
            self._wrong += 1
        return ReportedFrame(
            Avma(address),
            index,
            ImageOffset(address - base),
            adjustment,
            symbol,
            details=entry.details(),
        )

    def _agrees(self, entry: Taking, image: ReportedImage) -> bool:
        """Whether what a frame says of its image is so."""
        named, base = entry.left.get("object_name"), entry.left.get("object_addr")
        if isinstance(named, str) and named.rpartition("/")[2] != image.name:
            return False
        if isinstance(base, int) and base not in (0, image.load_address):
            return False
        start = entry.left.get("symbol_addr")
        return not isinstance(start, int) or start == 0 or image.holds(start)

    def _find(self, address: int) -> int | None:
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        index = self._indices[place]
        return index if self._images[index].holds(address) else None


def _symbol(entry: Taking, address: int | None) -> ReportedSymbol | None:
    name = entry.text("symbol_name")
    if name is None:
        return None
    start = entry.left.get("symbol_addr")
    into = None
    if isinstance(start, int) and address is not None and 0 < start <= address:
        into = address - start
        del entry.left["symbol_addr"]
    return ReportedSymbol(name, into)


def _registers(thread: Taking) -> ReportedRegisters | None:
    given = thread.left.get("registers")
    if not isinstance(given, dict):
        return None
    registers = Taking.of(thread.left.pop("registers"), f"{thread.where} registers", [])
    found: list[ReportedRegister] = []
    for group in ("basic", "exception"):
        inner = registers.inner(group)
        details: dict[str, JsonValue] = {} if group == "basic" else {"group": group}
        for name in tuple(inner.left):
            value = inner.integer(name)
            if value is not None:
                found.append(ReportedRegister(name, value, details=details))
    return ReportedRegisters(registers=tuple(found), details=registers.details())
