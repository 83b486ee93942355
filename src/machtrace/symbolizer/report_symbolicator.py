"""Names for the frames of whole reports, many reports at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from machtrace.frozen import dataclass
from machtrace.images.store_layout import Identifier
from machtrace.model.address import Avma, ImageOffset
from machtrace.model.frame_changes import with_changed_frames
from machtrace.model.report import (
    NO_DETAILS,
    Adjustment,
    Details,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedSymbol,
    ReportedTask,
    SampledNode,
    SampledTree,
)
from machtrace.model.symbol import FrameStatus
from machtrace.symbolizer.report_names import Calls, ReportCall, ReportNames

# --- Load addresses of images, inferred from the names that a report has for addresses in them ---
#
# A line as ``3 App 0x0000000104a2c1f4 $s3App4loadyyF + 44`` states neither where App was nor how
# far in it the address is; the function's address in App's file implies both. All such lines of an
# image must agree, or nothing is inferred.

_Task = TypeVar("_Task", bound=ReportedTask)
_PAGE = 0x1000
"""The alignment of load addresses, on every system."""
_WORD = 1 << 64
_MAX_STARTS = 8
"""Functions of one name that are tried."""

Hints = dict[int, dict[tuple[str, int], int]]
"""For each image by its index: addresses (Avma) less the offset, by name and address."""


def with_load_addresses(report: Report, names: ReportNames) -> Report:
    """Return the report with inferred load addresses, and with offsets of their frames.

    A warning lists the evidence of each. A report that has them all is returned unchanged.
    """
    placed = [_placed(task, names) for task in report.tasks]
    if not any(placed):
        return report
    warnings = tuple(
        f"{task.images[index].name} was loaded at {base:#x}, by the names of its frames"
        if base is not None
        else f"the names of frames in {task.images[index].name} do not fit the file found for it, "
        "which may be of another build"
        for task, bases in zip(report.tasks, placed, strict=True)
        for index, base in bases.items()
    )
    report = replace(report, warnings=(*report.warnings, *warnings))
    known = [{index: base for index, base in bases.items() if base is not None} for bases in placed]
    return _with(report, known) if any(known) else report


def _with(report: Report, bases: Sequence[dict[int, Avma]]) -> Report:
    own, *others = bases
    exception = report.language_exception
    if exception is not None:
        exception = replace(exception, frames=_mover(own)(exception.frames))
    return replace(
        _moved(report, own),
        language_exception=exception,
        others=tuple(map(_moved, report.others, others)),
    )


def _placed(task: ReportedTask, names: ReportNames) -> dict[int, Avma | None]:
    """Return load addresses of images, by index; None if names contradict one another."""
    lost = {
        index
        for index, image in enumerate(task.images)
        if image.load_address is None and names.identifier(image) is not None
    }
    if not lost:
        return {}
    hints: Hints = defaultdict(dict)
    for frame in _frames(task):
        symbol = frame.symbol
        if frame.image not in lost or frame.is_inline or frame.address is None or symbol is None:
            continue
        if frame.offset is None and symbol.offset is not None:
            hints[frame.image][symbol.name, frame.address] = frame.address - symbol.offset
    bases: dict[int, Avma | None] = {}
    for index in sorted(hints):
        allowed = _bases(task.images[index], hints[index], names)
        if allowed is not None:
            bases[index] = Avma(min(allowed)) if len(allowed) == 1 else None
    return bases


def _frames(task: ReportedTask) -> Iterable[ReportedFrame]:
    for thread in task.threads:
        yield from thread.frames
    for tree in task.trees:
        yield from (node.frame for node in tree.nodes)


def _bases(
    image: ReportedImage, hints: dict[tuple[str, int], int], names: ReportNames
) -> set[int] | None:
    """Return the load addresses that every known name allows; None if no name is known."""
    allowed: set[int] | None = None
    for (name, _), start in hints.items():
        offsets = names.starts(image, name)
        if not offsets or len(offsets) > _MAX_STARTS:
            continue
        bases = {start - offset for offset in offsets}
        allowed = bases if allowed is None else allowed & bases
    if allowed is None:
        return None
    return {base for base in allowed if 0 < base < _WORD and base % _PAGE == 0}


def _mover(
    bases: dict[int, Avma],
) -> Callable[[Sequence[ReportedFrame]], tuple[ReportedFrame, ...]]:
    def moved(frame: ReportedFrame) -> ReportedFrame:
        base = None if frame.image is None else bases.get(frame.image)
        if base is None or frame.offset is not None or frame.address is None:
            return frame
        inside = frame.address >= base
        return frame._replace(offset=ImageOffset(frame.address - base)) if inside else frame

    return lambda frames: tuple(map(moved, frames))


def _moved(task: _Task, bases: dict[int, Avma]) -> _Task:
    if not bases:
        return task
    images = tuple(
        replace(image, load_address=bases[index]) if index in bases else image
        for index, image in enumerate(task.images)
    )
    return with_changed_frames(replace(task, images=images), _mover(bases))


# --- Names for the frames of whole reports, many reports at once ---

Table = Mapping[int, Calls]
"""The names at each offset of an image that frames refer to."""

_RETURN = Adjustment.RETURN
_new = tuple.__new__


class FrameNamer:
    """Names the frames of one report."""

    def __init__(self) -> None:
        self.named = 0
        """The number of frames that got a name."""
        self.contradicted = 0
        """The number of those that have another name in the report."""

    def stack(
        self, frames: Iterable[ReportedFrame], tables: Sequence[Table | None]
    ) -> tuple[ReportedFrame, ...]:
        """Return the frames of a thread, each after the calls that are inlined into it.

        Args:
            frames: innermost first.
            tables: the names in each image of the report, or None.
        """
        stack: list[ReportedFrame] = []
        inlined: list[ReportedFrame] = []  # as the report has them
        for frame in frames:
            image, is_inline = frame[1], frame[6]
            if is_inline:
                inlined.append(frame)
                continue
            if not inlined:  # as nearly always
                table = None if image is None else tables[image]
                if table is None:
                    stack.append(frame)
                else:
                    stack += self._frame(frame, table)
                continue
            named = self.frame(frame, tables)
            if len(named) <= len(inlined):  # the report knew of more
                stack += inlined
                stack.append(named[-1])
            else:
                stack += named
            inlined = []
        return (*stack, *inlined)

    def frame(
        self, frame: ReportedFrame, tables: Sequence[Table | None]
    ) -> Sequence[ReportedFrame]:
        """Return a machine frame after the calls that are inlined there."""
        table = None if frame.image is None else tables[frame.image]
        return (frame,) if table is None else self._frame(frame, table)

    def _frame(self, frame: ReportedFrame, table: Table) -> Sequence[ReportedFrame]:
        # Tuples are made as such, here: a call of their class takes twice as long.
        address, image, offset, adjustment, symbol, location, _, details = frame
        if offset is None:
            return (frame,)
        calls = table.get(offset - (adjustment is _RETURN and offset > 0))
        if not calls:
            return (frame,)
        self.named += 1
        name, start, source, place, *_ = calls[-1]
        if symbol is not None and not _is_called(symbol.name, calls):
            self.contradicted += 1
            details = _with_reported(details, symbol)
        symbol = _new(ReportedSymbol, (name, None if start is None else offset - start, source))
        if len(calls) == 1:
            row = (address, image, offset, adjustment, symbol, place or location, False, details)
            return (_new(ReportedFrame, row),)
        inlined = [
            _new(
                ReportedFrame,
                (address, image, offset, adjustment, call[5], call[3], True, NO_DETAILS),
            )
            for call in calls
        ]
        row = (address, image, offset, adjustment, symbol, place, False, details)
        inlined[-1] = _new(ReportedFrame, row)
        return inlined

    def tree(self, tree: SampledTree, tables: Sequence[Table | None]) -> tuple[SampledNode, ...]:
        """Return the nodes of a tree; calls inlined into a node are between it and its children."""
        nodes: list[SampledNode] = []
        places: list[int] = []  # where each node's innermost call is among the new ones
        for node in tree.nodes:
            parent = None if node.parent is None else places[node.parent]
            frames = (node.frame,) if node.frame.is_inline else self.frame(node.frame, tables)
            for frame in reversed(frames):
                nodes.append(SampledNode(parent, node.samples, frame))
                parent = len(nodes) - 1
            places.append(len(nodes) - 1)
        return tuple(nodes)


def _is_called(name: str, calls: Sequence[ReportCall]) -> bool:
    spellings = {name, name.removeprefix("_"), f"_{name}"}
    return any(call.name in spellings or not spellings.isdisjoint(call.others) for call in calls)


def _with_reported(details: Details, symbol: ReportedSymbol) -> Details:
    into = "" if symbol.offset is None else f" + {symbol.offset}"
    return {**details, "reported symbol": f"{symbol.name}{into}"}


Tables: TypeAlias = Mapping[Identifier, Table]
"""The names in each image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingImage:
    """An image of frames without a file."""

    image: ReportedImage
    """The image as in the first report."""
    status: FrameStatus
    """Why it has no file."""
    frames: int
    """The number of its frames in all reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedReports:
    """Reports with names."""

    reports: tuple[Report, ...]
    missing: tuple[MissingImage, ...]
    """Those with the most frames first."""
    frames: int
    """The number of frames."""
    named: int
    """How many of them got names from files."""
    nameless: int
    """How many have no name at all."""
    contradicted: int
    """How many of the named frames have another name in the reports."""


def symbolicate_reports(reports: Sequence[Report], names: ReportNames) -> NamedReports:
    """Return the reports with names, source lines and inlined calls from files.

    Frames in images without files stay unchanged. If a frame has another name in the report, its
    details keep that, as ``reported symbol``, and a warning of the report counts them.

    Args:
        reports: any number; an image that they share is looked up in once.
        names: the source of names.
    """
    reports = [with_load_addresses(report, names) for report in reports]
    wanted = _Wanted(names)
    for report in reports:
        for task in report.tasks:
            wanted.add(task, report)
    tables: Tables = {
        key: names.find(image, wanted.offsets[key]) for key, image in wanted.images.items()
    }
    named = contradicted = 0
    named_reports: list[Report] = []
    for report in reports:
        namer = FrameNamer()
        named_reports.append(_named(report, namer, names, tables))
        named += namer.named
        contradicted += namer.contradicted
    return NamedReports(
        reports=tuple(named_reports),
        missing=wanted.missing(),
        frames=wanted.frames,
        named=named,
        nameless=sum(
            frame.symbol is None and not frame.is_inline
            for report in named_reports
            for task in report.tasks
            for frames in stacks(task, report)
            for frame in frames
        ),
        contradicted=contradicted,
    )


def stacks(task: ReportedTask, report: Report) -> Iterator[Iterable[ReportedFrame]]:
    """Yield the frames of a task's threads and trees, and of its exception."""
    for thread in task.threads:
        yield thread.frames
    for tree in task.trees:
        yield (node.frame for node in tree.nodes)
    if task is report and report.language_exception is not None:
        yield report.language_exception.frames


class _Wanted:
    """The images and offsets to look up, of all reports."""

    def __init__(self, names: ReportNames) -> None:
        self._names = names
        self.offsets: dict[Identifier, set[int]] = defaultdict(set)
        self.images: dict[Identifier, ReportedImage] = {}
        self.frames = 0
        self._counts: Counter[Identifier | str] = Counter()
        self._nameless: dict[str, ReportedImage] = {}

    def add(self, task: ReportedTask, report: Report) -> None:
        """Add the frames of a task."""
        counts = [0] * len(task.images)
        keys = list(map(self._names.identifier, task.images))
        sets = [set() if key is None else self.offsets[key] for key in keys]
        returned = Adjustment.RETURN
        total = 0
        for frames in stacks(task, report):
            for _, image, offset, adjustment, _, _, is_inline, _ in frames:
                if is_inline:
                    continue
                total += 1
                if image is not None and offset is not None:
                    counts[image] += 1
                    # As ReportedFrame.lookup has it: a call of that takes longer than the rest.
                    sets[image].add(offset - (adjustment is returned and offset > 0))
        self.frames += total
        for reported, key, count in zip(task.images, keys, counts, strict=True):
            if not count:
                continue
            if key is None:
                self._nameless.setdefault(reported.name, reported)
                self._counts[reported.name] += count
            else:
                self.images.setdefault(key, reported)
                self._counts[key] += count

    def missing(self) -> tuple[MissingImage, ...]:
        """Return the images without files."""
        missing = [
            MissingImage(image=image, status=status, frames=self._counts[key])
            for key, image in (*self.images.items(), *self._nameless.items())
            if (status := self._names.status(image)) is not FrameStatus.SYMBOLICATED
        ]
        return tuple(sorted(missing, key=lambda one: -one.frames))


def _named(report: Report, namer: FrameNamer, names: ReportNames, tables: Tables) -> Report:
    known = {id(task): _tables_of(task, names, tables) for task in report.tasks}
    task = _named_task(report, namer, known[id(report)])
    exception = report.language_exception
    if exception is not None:
        frames = namer.stack(exception.frames, known[id(report)])
        exception = replace(exception, frames=frames)
    others = tuple(_named_task(other, namer, known[id(other)]) for other in report.others)
    warnings = report.warnings + _by_name(report, names, tables)
    if namer.contradicted:
        count = namer.contradicted
        warnings += (f"{count} frame{'' if count == 1 else 's'} had wrong names in the report",)
    return replace(
        report,
        threads=task.threads,
        trees=task.trees,
        language_exception=exception,
        others=others,
        warnings=warnings,
    )


def _named_task(
    task: ReportedTask, namer: FrameNamer, known: Sequence[Table | None]
) -> ReportedTask:
    return ReportedTask(
        process=task.process,
        images=task.images,
        threads=tuple(
            replace(thread, frames=namer.stack(thread.frames, known)) for thread in task.threads
        ),
        trees=tuple(replace(tree, nodes=namer.tree(tree, known)) for tree in task.trees),
    )


def _tables_of(task: ReportedTask, names: ReportNames, tables: Tables) -> list[Table | None]:
    """Return the names in each image; None without any."""
    keys = map(names.identifier, task.images)
    return [None if key is None else tables.get(key) or None for key in keys]


def _by_name(report: Report, names: ReportNames, tables: Tables) -> tuple[str, ...]:
    """Return warnings for images that were found by their names alone."""
    files = {
        image.name: file
        for task in report.tasks
        for image in task.images
        if (file := names.file_by_name(image)) is not None and tables.get(file.identifier)
    }
    return tuple(
        f"{name} has no UUID in the report; its names are from {file.path}, by its name alone"
        for name, file in files.items()
    )
