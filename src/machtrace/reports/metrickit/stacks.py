"""``callStackTree``: threads if the frames are one stack, trees if they branch.

Nested ``subFrames`` are flattened first. Images are collected from frames, since payloads have no
list of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NamedTuple
from uuid import UUID

from machtrace.frozen import dataclass
from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    Adjustment,
    JsonValue,
    ReportedFrame,
    ReportedImage,
    ReportedProcess,
    ReportedSymbol,
    ReportedTask,
    ReportedThread,
    SampledNode,
    SampledTree,
)
from machtrace.model.symbol import SourceLocation
from machtrace.reports.consume import NO_OBJECT, ObjectReader
from machtrace.reports.images import NO_UUID, uuid_of

_WORD = 1 << 64
_MIN_ADDRESS = 1 << 32
"""Lowest address of Apple's 64-bit programs; images are smaller."""
_PAGE = 0x1000
"""The smallest page size; arm64's is four times as large."""
BINARIES = "binaryInfo"
"""The key of image names in iOS 27's trees, whose frames have only UUIDs."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]{1,16}|[0-9]{1,19}")


@dataclass(slots=True)
class _Seen:
    uuid: UUID | None
    name: str
    bases: set[int] = field(default_factory=set)


@dataclass(slots=True)
class ImageCollector:
    """Finds each frame's image and its offset in it."""

    named: Mapping[str, str] = field(default_factory=dict)
    """Names of images without names in frames, by UUID in capital letters."""
    _seen: list[_Seen] = field(default_factory=list)
    _places: dict[tuple[str, str], int | None] = field(default_factory=dict)
    may_be_adjusted: bool = True
    """Whether an odd offset of the current stack implies that it was adjusted."""
    swapped: int = 0
    """Frames whose offset was the image's load address: payloads of iOS 14, 15 and macOS 12."""

    def place(
        self, entry: dict[str, JsonValue]
    ) -> tuple[Avma | None, int | None, ImageOffset | None]:
        """Consume the frame's address, the index of its image, and the offset."""
        index = self._image(entry)
        address = _take(entry, "address")
        offset = _take(entry, "offsetIntoBinaryTextSegment")
        if offset is not None and (offset >= _MIN_ADDRESS or _is_base(offset, address)):
            if address is None or not 0 <= address - offset < _MIN_ADDRESS:
                entry["offsetIntoBinaryTextSegment"] = offset
                offset = None
            else:
                self.swapped += 1
                offset = address - offset
        if index is not None and address is not None and offset is not None:
            self._seen[index].bases.add(address - offset)
        return (
            None if address is None else Avma(address),
            index,
            None if offset is None or index is None else ImageOffset(offset),
        )

    def _image(self, entry: dict[str, JsonValue]) -> int | None:
        digits, name = entry.get("binaryUUID"), entry.get("binaryName")
        if not isinstance(digits, str) and not isinstance(name, str):
            return None
        uuid = digits if isinstance(digits, str) else ""
        key = (uuid, name if isinstance(name, str) else self.named.get(uuid.upper(), ""))
        if key not in self._places:
            self._places[key] = self._add(*key)
        index = self._places[key]
        if index is not None:
            entry.pop("binaryUUID", None)
            if isinstance(name, str):
                entry.pop("binaryName")
        return index

    def _add(self, identifier: str, name: str) -> int | None:
        uuid = uuid_of(identifier)
        if uuid is None and identifier.replace("-", "") not in ("", NO_UUID):
            return None
        self._seen.append(_Seen(uuid, name))
        return len(self._seen) - 1

    def images(self) -> tuple[ReportedImage, ...]:
        """Return the named images in order of appearance."""
        return tuple(
            ReportedImage(
                uuid=image.uuid,
                name=image.name,
                load_address=_base(image.bases),
            )
            for image in self._seen
        )


def binary_names(value: JsonValue) -> dict[str, str]:
    """Return names by UUIDs in capital letters.

    ``binaryInfo`` was seen as a list of objects with ``uuid`` and ``name``. In the API it is a
    dictionary, which Swift may also encode as an object, or as a list of alternating keys and
    values.
    """
    names: dict[str, str] = {}
    pairs: list[tuple[JsonValue, JsonValue]] = []
    if isinstance(value, dict):
        pairs = [*value.items()]
    elif isinstance(value, list):
        pairs = [(label.get("uuid"), label) for label in value if isinstance(label, dict)]
        pairs += zip(value[::2], value[1::2], strict=False)
    for uuid, label in pairs:
        name = label.get("name") if isinstance(label, dict) else label
        if isinstance(uuid, str) and isinstance(name, str):
            names[uuid.upper()] = name
    return names


def _base(bases: Sequence[int] | set[int]) -> Avma | None:
    """Return the load address, if all frames agree on it: they can be of several launches."""
    return Avma(next(iter(bases))) if len(bases) == 1 and min(bases) >= 0 else None


def _is_base(offset: int, address: int | None) -> bool:
    """Return whether a value that could be an offset is a load address.

    Images are loaded at whole pages, and then the remaining offset is page-aligned, too. Programs
    of watchOS are below 4 GiB.
    """
    if address is None or offset == 0 or offset % _PAGE or address < offset:
        return False
    return bool((address - offset) % _PAGE)


def _take(entry: dict[str, JsonValue], key: str) -> int | None:
    value = as_number(entry.get(key))
    if value is not None and 0 <= value < _WORD:
        del entry[key]
        return value
    return None


def as_number(value: JsonValue) -> int | None:
    """Parse a number; App Store Connect has text: ``"0x19f7cda84"``, ``"1466"``."""
    if type(value) is int:
        return value
    if not isinstance(value, str) or _NUMBER.fullmatch(value) is None:
        return None
    return int(value, 16) if value.startswith("0x") else int(value)


class NestedFrame(NamedTuple):
    """A frame of a tree."""

    around: int | None
    """The index of the frame that holds it; None for a root."""
    entry: dict[str, JsonValue]
    """Its own entries, without nested frames."""


def flattened(roots: JsonValue, warnings: list[str]) -> list[NestedFrame]:
    """Return all frames, parents before children, siblings in the file's order.

    Trees are tens of thousands of frames deep, which rules out recursion.
    """
    frames: list[NestedFrame] = []
    wrong = 0
    waiting: list[tuple[int | None, JsonValue]] = [(None, root) for root in _reversed(roots)]
    while waiting:
        parent, entry = waiting.pop()
        if not isinstance(entry, dict):
            wrong += 1
            frames.append(NestedFrame(parent, {NO_OBJECT: entry}))
            continue
        inner = entry.get("subFrames")
        frames.append(
            NestedFrame(
                parent,
                {key: value for key, value in entry.items() if key != "subFrames"}
                if inner is None or isinstance(inner, list)
                else dict(entry),
            )
        )
        place = len(frames) - 1
        waiting += ((place, one) for one in _reversed(inner))
    if wrong:
        warnings.append(f"{wrong} frames are not objects; stored as they are")
    return frames


def _reversed(frames: JsonValue) -> list[JsonValue]:
    return frames[::-1] if isinstance(frames, list) else []


def is_chain(frames: list[NestedFrame]) -> bool:
    """Return whether each frame is nested in the one before it."""
    return all(frame.around == (index - 1 if index else None) for index, frame in enumerate(frames))


_BEGINNERS = frozenset({"dyld", "libdyld.dylib", "libsystem_pthread.dylib"})
"""Images in which threads begin."""
_INSTRUCTION = 4
"""Bytes of an arm64 instruction: an unaligned address was adjusted by the writer."""
_OFFSET = "offsetIntoBinaryTextSegment"


def read_tree(
    tree: ObjectReader, process: ReportedProcess, *, is_crash: bool | None
) -> tuple[ReportedTask, bool]:
    """Read the stacks, and whether offsets were load addresses.

    Args:
        tree: the object of ``callStackTree``.
        process: the stacks' process.
        is_crash: whether it is of a crash, whose trees have the innermost frame as root; None if
            unknown.
    """
    images = ImageCollector(named=binary_names(tree.left.get(BINARIES)))
    threads: list[ReportedThread] = []
    trees: list[SampledTree] = []
    key = "callStackThreads" if "callStackThreads" in tree.left else "callStacks"
    for number, entry in enumerate(tree.objects(key)):
        stack = ObjectReader.of(entry, f"{key}[{number}]", tree.warnings)
        roots = "rootFrames" if "rootFrames" in stack.left else "callStackRootFrames"
        frames = flattened(stack.left.pop(roots, None), tree.warnings)
        attributed = bool(stack.boolean("threadAttributed"))
        inverted = _is_inverted(frames) if is_crash is None else is_crash
        images.may_be_adjusted = _may_be_adjusted(frames, process.code_type)
        if inverted and is_chain(frames):
            threads.append(_thread(len(threads), frames, images, stack, crashed=attributed))
        else:
            trees.append(_tree(frames, images, stack, attributed=attributed, inverted=inverted))
    task = ReportedTask(
        process=process, threads=tuple(threads), trees=tuple(trees), images=images.images()
    )
    return task, bool(images.swapped)


def _may_be_adjusted(frames: Sequence[NestedFrame], code_type: str | None) -> bool:
    """Return whether an odd offset implies that it was adjusted.

    True on arm64, never for instructions of any alignment. Without an architecture, most offsets
    must be odd.
    """
    if code_type is not None:
        return code_type.startswith("arm64")
    entries = [frame.entry.get(_OFFSET) for frame in frames]
    offsets = [entry for entry in entries if type(entry) is int]
    misaligned = sum(offset % _INSTRUCTION == _INSTRUCTION - 1 for offset in offsets)
    return 2 * misaligned > len(offsets)


def _is_inverted(frames: Sequence[NestedFrame]) -> bool:
    """Return whether the root is the innermost frame, by the functions in which threads begin."""
    if not frames:
        return False
    inner = {frame.around for frame in frames}
    first = frames[0].entry.get("binaryName")
    last = [
        frame.entry.get("binaryName") for index, frame in enumerate(frames) if index not in inner
    ]
    if first in _BEGINNERS and not any(name in _BEGINNERS for name in last):
        return False
    return any(name in _BEGINNERS for name in last) or is_chain(list(frames))


def _thread(
    index: int,
    frames: Sequence[NestedFrame],
    images: ImageCollector,
    stack: ObjectReader,
    *,
    crashed: bool,
) -> ReportedThread:
    thread_frames: list[ReportedFrame] = []
    for frame in frames:
        samples = frame.entry.get("sampleCount")
        if type(samples) is int and samples == 1:
            del frame.entry["sampleCount"]
        adjustment = Adjustment.RETURN if thread_frames else Adjustment.EXACT
        thread_frames.append(_frame(frame.entry, images, adjustment))
    return ReportedThread(
        index=index, crashed=crashed, frames=tuple(thread_frames), details=stack.details()
    )


def _tree(
    frames: Sequence[NestedFrame],
    images: ImageCollector,
    stack: ObjectReader,
    *,
    attributed: bool,
    inverted: bool,
) -> SampledTree:
    has_inner = {frame.around for frame in frames}
    nodes: list[SampledNode] = []
    for index, frame in enumerate(frames):
        samples = frame.entry.get("sampleCount")
        if type(samples) is int and samples >= 0:
            del frame.entry["sampleCount"]
        else:
            samples = 0
        is_leaf = frame.around is None if inverted else index not in has_inner
        adjustment = Adjustment.EXACT if is_leaf else Adjustment.RETURN
        nodes.append(SampledNode(frame.around, samples, _frame(frame.entry, images, adjustment)))
    return SampledTree(
        nodes=tuple(nodes),
        is_attributed=attributed,
        is_inverted=inverted,
        details=stack.details(),
    )


def _frame(
    entry: dict[str, JsonValue], images: ImageCollector, adjustment: Adjustment
) -> ReportedFrame:
    address, image, offset = images.place(entry)
    if images.may_be_adjusted and offset is not None and offset % _INSTRUCTION == _INSTRUCTION - 1:
        adjustment = Adjustment.ALREADY_ADJUSTED
    symbol = location = None
    if isinstance(name := entry.get("symbolName"), str) and name:  # of App Store Connect
        into = as_number(entry.get("offsetIntoSymbol"))
        del entry["symbolName"]
        if into is not None:
            del entry["offsetIntoSymbol"]
        symbol = ReportedSymbol(name, into)
    if isinstance(file := entry.get("fileName"), str) and file:
        line = as_number(entry.get("lineNumber"))
        del entry["fileName"]
        if line is not None and line > 0:
            del entry["lineNumber"]
        location = SourceLocation(file, line if line is not None and line > 0 else None)
    return ReportedFrame(address, image, offset, adjustment, symbol, location, details=entry)
