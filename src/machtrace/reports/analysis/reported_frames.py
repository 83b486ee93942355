"""Frames of reports as frames of captures have them, so that one set of writers does for both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.report import ReportedTask
from machtrace.model.reported_frame import Adjustment, NameSource, ReportedFrame
from machtrace.model.reported_image import ReportedImage
from machtrace.model.snapshot import ProcessInfo
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust
from machtrace.model.symbol import Certainty, Frame, FrameStatus, InlineFrame, Symbol

_ARCHES = {arch.value: arch for arch in Arch}
_CODE_TYPES = {
    "ARM-64": Arch.ARM64,
    "ARM": Arch.ARMV7,
    "X86-64": Arch.X86_64,
    "X86": Arch.I386,
    "ARM64": Arch.ARM64,
}
_KINDS = {
    Adjustment.EXACT: AddressKind.PROGRAM_COUNTER,
    Adjustment.RETURN: AddressKind.RETURN_ADDRESS,
    Adjustment.ALREADY_ADJUSTED: AddressKind.ADJUSTED,
    Adjustment.UNKNOWN: AddressKind.ADJUSTED,
}
_LONGEST_PATH = 4096
"""Characters; every frame's line has an image's name, and longer ones are of no system."""
_CERTAINTIES = {certainty.value: certainty for certainty in Certainty}


def process_info(task: ReportedTask) -> ProcessInfo:
    """Which process; its architecture is that of its code, else of its images, else arm64."""
    process = task.process
    code_type = (process.code_type or "").split(" ")[0]
    arch = _ARCHES.get(code_type) or _CODE_TYPES.get(code_type.upper())
    if arch is None:
        known = (_ARCHES.get(image.arch or "") for image in task.images)
        arch = next((one for one in known if one is not None), Arch.ARM64)
    return ProcessInfo(pid=process.pid, path=process.path or process.name or "", arch=arch)


class ReportedFrames:
    """Makes the frames of one task."""

    def __init__(self, task: ReportedTask) -> None:
        self._arch = process_info(task).arch
        self.images = tuple(self._image(image) for image in task.images)
        """As the task lists them; one whose place is not known lies at 0."""

    def _image(self, image: ReportedImage) -> BinaryImage:
        return BinaryImage(
            path=(image.path or image.name)[:_LONGEST_PATH],
            uuid=image.uuid,
            arch=_ARCHES.get(image.arch or "", self._arch),
            format=ImageFormat.identified_by(image.uuid),
            load_address=image.load_address or Avma(0),
            header_svma=Svma(0),
            size=image.size or 0,
        )

    def stack(self, frames: Iterable[ReportedFrame]) -> Iterator[Frame]:
        """Of a thread: what was inlined into a frame goes with it."""
        inlined: list[ReportedFrame] = []
        for frame in frames:
            if frame.is_inline:
                inlined.append(frame)
            else:
                yield self.frame(frame, inlined)
                inlined = []
        yield from (self.frame(frame) for frame in inlined)

    def frame(self, frame: ReportedFrame, inlined: Sequence[ReportedFrame] = ()) -> Frame:
        """One frame, and the calls that were inlined into it, innermost first."""
        image = None if frame.image is None else self.images[frame.image]
        address = frame.address
        if frame.offset is not None and image is not None:
            # Where frames of several launches are together, the offset is what is known.
            address = Avma(image.load_address + frame.offset)
        address = Avma(0) if address is None else address
        symbol = self._symbol(frame, image, address)
        if image is None:
            status = FrameStatus.UNKNOWN_IMAGE
        else:
            status = FrameStatus.NOT_ASKED if symbol is None else FrameStatus.SYMBOLICATED
        return Frame(
            address=FrameAddress(address, FrameTrust.PREWALKED, _KINDS[frame.adjustment]),
            status=status,
            image=image,
            symbol=symbol,
            location=frame.location,
            inlined=tuple(
                InlineFrame("" if one.symbol is None else one.symbol.name, one.location)
                for one in inlined
            ),
        )

    def _symbol(
        self, frame: ReportedFrame, image: BinaryImage | None, address: Avma
    ) -> Symbol | None:
        if frame.symbol is None:
            return None
        place = address if image is None else image.offset_of(address)
        source = frame.symbol.source
        exact = source in (NameSource.REPORT, NameSource.DEBUG_INFORMATION)
        return Symbol(
            name=frame.symbol.name,
            linkage_name="",
            offset=ImageOffset(place - (frame.symbol.offset or 0)),
            size=None,
            certainty=Certainty.EXACT if exact else _CERTAINTIES[source.value],
        )
