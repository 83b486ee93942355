"""Images, threads and their frames."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.json_value import JsonValue
from machtrace.model.report import (
    Adjustment,
    ReportedFrame,
    ReportedImage,
    ReportedRegister,
    ReportedRegisters,
    ReportedSymbol,
    ReportedThread,
)
from machtrace.reports.images import ImageRanges, arch_name
from machtrace.reports.plcrash.wire import Message



def read_images(message: Message, warnings: list[str]) -> tuple[ReportedImage, ...]:
    """Read ``binary_images``."""
    images = tuple(_image(one) for one in message.messages(4))
    if not images:
        warnings.append("it has no images")
    return images


def _image(message: Message) -> ReportedImage:
    base, code_type, uuid = message.integer(1), message.message(5), message.data(4)
    path = message.text(3) or ""
    encoding, kind, subtype = code_type.integer(1), code_type.integer(2), code_type.integer(3)
    numbers = {"encoding": encoding, "type": kind, "subtype": subtype}
    details: dict[str, JsonValue] = {key: one for key, one in numbers.items() if one is not None}
    if rest := code_type.rest():
        details["code_type"] = rest
    if uuid is not None and len(uuid) != _UUID_BYTES:
        details["uuid"] = uuid.hex()
    return ReportedImage(
        uuid=UUID(bytes=uuid) if uuid is not None and len(uuid) == _UUID_BYTES else None,
        name=path.rpartition("/")[2],
        path=path,
        arch=None if kind is None else arch_name(kind, subtype or 0),
        load_address=None if base is None else Avma(base),
        size=message.integer(2),
        details=details | message.rest(),
    )


class StackReader:
    """Reads threads, and finds the images of frames."""

    def __init__(self, images: Sequence[ReportedImage], warnings: list[str]) -> None:
        self._images = images
        self._warnings = warnings
        self._ranges = ImageRanges(images)

    def threads(self, message: Message) -> tuple[ReportedThread, ...]:
        """Read ``threads``."""
        return tuple(self._thread(number, one) for number, one in enumerate(message.messages(3)))

    def _thread(self, place: int, message: Message) -> ReportedThread:
        number = message.integer(1)
        registers = tuple(
            ReportedRegister(one.text(1) or "", one.integer(2) or 0, details=one.rest())
            for one in message.messages(4)
        )
        crashed = bool(message.boolean(3))
        return ReportedThread(
            index=place if number is None else number,
            crashed=crashed,
            frames=self._frames(message, 2, Adjustment.EXACT),
            registers=ReportedRegisters(registers=registers) if registers else None,
            details=message.rest(),
        )

    def returns(self, message: Message) -> tuple[ReportedFrame, ...]:
        """Read the frames of an exception, all of them return addresses."""
        return self._frames(message, 3, Adjustment.RETURN)

    def _frames(
        self, message: Message, field: int, innermost: Adjustment
    ) -> tuple[ReportedFrame, ...]:
        frames: list[ReportedFrame] = []
        for entry in message.messages(field):
            frames.append(self._frame(entry, Adjustment.RETURN if frames else innermost))
        return tuple(frames)

    def _frame(self, message: Message, adjustment: Adjustment) -> ReportedFrame:
        signed = message.integer(3)
        address = None if signed is None else self._ranges.unsigned(signed)
        # A call can be the last instruction of its image.
        inside = None if address is None else address - (adjustment is Adjustment.RETURN)
        index = None if inside is None else self._ranges.find(inside)
        offset = None
        if index is not None and address is not None:
            offset = ImageOffset(address - (self._images[index].load_address or 0))
        symbol_message = message.message(6)
        name, start = symbol_message.text(1), symbol_message.integer(2)
        end = symbol_message.integer(3)
        details: dict[str, JsonValue] = {}
        if rest := symbol_message.rest():
            details["symbol"] = rest
        details |= message.rest()
        if signed != address:
            details["pc"] = signed
        if end is not None:
            details["end_address"] = end
        into = None
        if name is not None and start is not None and address is not None and start <= address:
            into = address - start
        elif start is not None:
            details["start_address"] = start
        return ReportedFrame(
            None if address is None else Avma(address),
            index,
            offset,
            adjustment,
            None if name is None else ReportedSymbol(name, into),
            details=details,
        )
