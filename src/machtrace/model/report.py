"""A report of any format: its process, system and cause, threads, sampled stacks and images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from enum import Enum
from typing import NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from machtrace.frozen import dataclass
from machtrace.model.address import Avma, ImageOffset
from machtrace.model.image import BuildId
from machtrace.model.json_value import NO_DETAILS, Details
from machtrace.model.symbol import SourceLocation
from machtrace.model.text import (
    FrameText,
    Row,
    chain_lines,
    counted,
    printable,
    short_location,
)


def _words(separator: str, *words: str | None) -> str:
    return separator.join(word for word in words if word)


class Adjustment(Enum):
    """How a frame's address stands to the instruction that was running."""

    EXACT = "exact"
    """It is that instruction: a thread was interrupted or stopped there."""
    RETURN = "return"
    """It is where a call will return to: the call is the instruction before it."""
    ALREADY_ADJUSTED = "already-adjusted"
    """It was a return address, and who wrote the report took one byte or instruction away."""
    UNKNOWN = "unknown"
    """The format does not say."""


class NameSource(Enum):
    """Where a frame's name is from."""

    REPORT = "report"
    """The report itself has it: whoever wrote that looked it up, well or badly."""
    DEBUG_INFORMATION = "debug-information"
    EXACT = "exact"
    """This and the next: see :class:`~machtrace.model.symbol.Certainty`."""
    EXPORT = "export"
    OBJC = "objc"
    RTTI = "rtti"
    SWIFT = "swift"
    PCLNTAB = "pclntab"
    STUB = "stub"


class ReportedSymbol(NamedTuple):
    """A function's name, and how far into it the frame is."""

    name: str
    """As it is written there: demangled or not."""
    offset: int | None
    """Bytes from the function's start to the frame's address; None where nobody says."""
    source: NameSource = NameSource.REPORT

    def __str__(self) -> str:
        return self.name if self.offset is None else f"{self.name} + {self.offset}"


class ReportedFrame(NamedTuple):
    """One line of a stack. Rows by the hundred thousand, hence a tuple.

    A call that was inlined is a frame of its own, just before (inside of) the frame of the machine
    that it shares its address with.
    """

    address: Avma | None
    """As the report has it, signature bits removed; None where it has none."""
    image: int | None
    """Which of the report's images holds it: an index; None where that is not known."""
    offset: ImageOffset | None
    """Bytes from that image's header; None where that is not known."""
    adjustment: Adjustment = Adjustment.UNKNOWN
    symbol: ReportedSymbol | None = None
    location: SourceLocation | None = None
    is_inline: bool = False
    """Whether it is a call inlined into the next frame."""
    details: Details = NO_DETAILS

    @property
    def lookup(self) -> ImageOffset | None:
        """The offset to look names up at: inside of the call, not after it.

        One that was adjusted already, and one of which nothing is known, are taken as they are.
        """
        if self.offset is None:
            return None
        if self.adjustment is Adjustment.RETURN and self.offset > 0:
            return ImageOffset(self.offset - 1)
        return self.offset

    def text(self, images: Sequence[ReportedImage]) -> FrameText:
        """Return the frame's line; ``images`` are those of its task."""
        image = "???" if self.image is None else printable(images[self.image].name) or "?"
        offset = "?" if self.offset is None else f"? (image + {self.offset:#x})"
        name = offset if self.symbol is None else printable(str(self.symbol))
        path, line = (
            ("", None) if self.location is None else (self.location.path, self.location.line)
        )
        note = "inlined" if self.is_inline else ""
        row = Row(image, self.address, name, short_location(path, line) if path else "", note)
        return FrameText((row,), row)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedProcess:
    """A process. What the report does not say is None."""

    name: str | None = None
    pid: int | None = None
    path: str | None = None
    identifier: str | None = None
    """Of its bundle."""
    version: str | None = None
    """``CFBundleShortVersionString``."""
    build: str | None = None
    """``CFBundleVersion``."""
    code_type: str | None = None
    """``ARM-64``, as the report has it."""
    is_translated: bool | None = None
    """Whether it ran under Rosetta."""
    role: str | None = None
    parent: str | None = None
    """The parent's name."""
    parent_pid: int | None = None
    coalition: str | None = None
    coalition_id: int | None = None
    user_id: int | None = None
    launch_time: str | None = None
    """As the report writes it."""
    details: Details = field(default_factory=dict)

    def __str__(self) -> str:
        pid = "" if self.pid is None else f"[{self.pid}]"
        return _words("  ", printable(_words(" ", self.name or "process", pid)), self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedSystem:
    """The machine and its system. What the report does not say is None."""

    model: str | None = None
    """``iPhone14,2``."""
    os_name: str | None = None
    """With its version, as the report has it: ``iPhone OS 16.0``."""
    os_build: str | None = None
    """``20A362``."""
    release_type: str | None = None
    baseband_version: str | None = None
    crash_reporter_key: str | None = None
    """What stands for the machine, made anonymous."""
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedException:
    """Why the report was made, as the kernel or the runtime said."""

    type: str | None = None
    """``EXC_BREAKPOINT``."""
    signal: str | None = None
    """``SIGTRAP``."""
    codes: str | None = None
    """As the report writes them: ``0x0000000000000001, 0x000000018a98520c``."""
    raw_codes: tuple[int, ...] = ()
    subtype: str | None = None
    """``KERN_INVALID_ADDRESS at 0x0000000000000010``."""
    message: str | None = None
    address: int | None = None
    """Which access failed (Avma)."""
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTermination:
    """Who ended the process, and why."""

    namespace: str | None = None
    """``SIGNAL``, ``DYLD``, ``FRONTBOARD``."""
    code: int | None = None
    indicator: str | None = None
    by_process: str | None = None
    by_pid: int | None = None
    flags: int | None = None
    reasons: tuple[str, ...] = ()
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageException:
    """An exception of Objective-C, C++ or Swift that nobody caught."""

    name: str | None = None
    reason: str | None = None
    frames: tuple[ReportedFrame, ...] = ()
    """Where it was thrown, innermost first: Apple's *Last Exception Backtrace*."""
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """What was reported, and when."""

    id: str | None = None
    """As the report writes it."""
    time: str | None = None
    """When it happened, as the report writes it."""
    kind: str | None = None
    """What sort of incident, in the format's own word: Apple's ``bug_type``, KSCrash's ``type``."""
    report_version: str | None = None
    details: Details = field(default_factory=dict)


class ReportedRegister(NamedTuple):
    """A register's value in a report."""

    name: str
    """As the report calls it: ``x0``, ``rip``."""
    value: int
    """Unsigned, with the signature bits that it may have had."""
    description: str | None = None
    """What the report says that it means: ``(Breakpoint) brk 1``."""
    details: Details = NO_DETAILS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRegisters:
    """The state of a thread's processor."""

    registers: tuple[ReportedRegister, ...]
    """In the report's order."""
    flavor: str | None = None
    """``ARM_THREAD_STATE64``, or what the report calls it."""
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedThread:
    """A thread, with the frames that were walked when the report was made."""

    index: int
    """The number that the report gives it, from 0."""
    id: int | None = None
    """System-wide; None where the report has none."""
    name: str | None = None
    queue: str | None = None
    """Label of the dispatch queue that the thread was serving."""
    crashed: bool = False
    """Whether it is the one that the report is about."""
    frames: tuple[ReportedFrame, ...] = ()
    """Innermost first, whatever the file's direction was."""
    registers: ReportedRegisters | None = None
    details: Details = field(default_factory=dict)

    @property
    def heading(self) -> str:
        """The line above the thread's stack."""
        name = f"“{printable(self.name)}”" if self.name else None
        number = None if self.id is None else f"id {self.id}"
        queue = f"queue {printable(self.queue)}" if self.queue else None
        state = "crashed" if self.crashed else None
        return _words("  ", f"Thread {self.index}", name, number, queue, state)

    def __repr__(self) -> str:
        return f"<ReportedThread {self.index}: {counted(len(self.frames), 'frame')}>"


class SampledNode(NamedTuple):
    """A frame of a tree, and how many samples went through it."""

    parent: int | None
    """The index of the frame that called it, which is smaller than its own; None for a root."""
    samples: int
    frame: ReportedFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTree:
    """The samples of one thread, or of all: callers are parents, unless it is inverted.

    The nodes are in one tuple, parents before children and siblings in the report's order, so that
    trees of any depth can be read, compared and written without recursion.
    """

    nodes: tuple[SampledNode, ...]
    thread: int | None = None
    """System-wide id; None where the tree is of all threads, or the report has none."""
    name: str | None = None
    """Of the thread."""
    queue: str | None = None
    count: int | None = None
    """All samples, where the report says so apart from the roots' counts."""
    is_attributed: bool = False
    """Whether the report is about this thread."""
    is_inverted: bool = False
    """Whether roots are innermost frames, and parents what their children called: such a tree stays
    as it is, for to turn it round could take the square of its size."""
    details: Details = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, node in enumerate(self.nodes):
            if node.parent is not None and not 0 <= node.parent < index:
                msg = f"node {index} has the parent {node.parent}"
                raise ValueError(msg)

    @property
    def root_samples(self) -> int:
        """The samples of all roots."""
        return sum(node.samples for node in self.nodes if node.parent is None)

    def depths(self) -> Iterator[int]:
        """How many callers each node has, in order."""
        depths: list[int] = []
        for node in self.nodes:
            depths.append(0 if node.parent is None else depths[node.parent] + 1)
            yield depths[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedImage:
    """An image that a report lists, or only mentions."""

    uuid: UUID | BuildId | None = None
    """What identifies its contents; None where it has nothing, or only zeros."""
    name: str = ""
    """Empty where the report has none."""
    path: str = ""
    """Where it was on the machine of the report; empty where that is not known."""
    arch: str | None = None
    """As the report has it: ``arm64e``."""
    load_address: Avma | None = None
    """Of its header."""
    size: int | None = None
    """In bytes, of its code (``__TEXT``)."""
    version: str | None = None
    """``CFBundleShortVersionString``, else what stands in its place."""
    details: Details = field(default_factory=dict)

    def holds(self, address: int) -> bool:
        """Whether ``address`` (Avma) is in it, as far as the report says where it ends."""
        if self.load_address is None or self.size is None:
            return False
        return self.load_address <= address < self.load_address + self.size


class ReportKind(Enum):
    """What a report was read from."""

    APPLE_IPS = "ips"
    APPLE_CRASH = "crash"
    METRICKIT = "metrickit"
    KSCRASH = "kscrash"
    PLCRASH = "plcrash"
    SAMPLE = "sample"
    SPINDUMP = "spindump"
    MICROSTACKSHOT = "microstackshot"
    CALL_STACK_SYMBOLS = "call-stack-symbols"
    LLDB = "lldb"
    GDB = "gdb"
    SANITIZER = "sanitizer"
    SWIFT = "swift"
    """A backtrace of Swift's runtime, as text or as JSON."""
    MACHTRACE = "machtrace"
    """A capture of machtrace's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTask:
    """A process of a report with all that is said of it."""

    process: ReportedProcess = field(default_factory=ReportedProcess)
    threads: tuple[ReportedThread, ...] = ()
    """In the report's order."""
    trees: tuple[SampledTree, ...] = ()
    images: tuple[ReportedImage, ...] = ()
    """In the report's order: frames of this task name them by index."""

    def lines(self) -> Iterator[str]:
        """Yield the process, and its threads with their frames."""
        yield f"Process: {self.process}"
        for thread in self.threads:
            yield from ("", thread.heading, *self._frame_lines(thread.frames))
        for tree in self.trees:
            name = f"“{printable(tree.name)}”" if tree.name else None
            frames = counted(len(tree.nodes), "frame")
            samples = None if tree.count is None else counted(tree.count, "sample")
            yield ""
            yield _words("  ", "Sampled stacks", name, frames, samples)

    def _frame_lines(self, frames: Sequence[ReportedFrame]) -> Iterator[str]:
        yield from chain_lines([(0, [frame.text(self.images) for frame in frames])])

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        parts = ((self.threads, "thread"), (self.trees, "tree"), (self.images, "image"))
        counts = ", ".join(counted(len(part), noun) for part, noun in parts if part) or "nothing"
        return f"<{type(self).__name__} of {str(self.process).replace('  ', ' ')}: {counts}>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report(ReportedTask):
    """One incident. Two are equal when they hold the same; warnings do not count.

    What the source says and has no place here is in the ``details`` of what it is said of, by the
    source's own names and in its order: nothing is dropped.
    """

    kind: ReportKind
    incident: Incident = field(default_factory=Incident)
    system: ReportedSystem = field(default_factory=ReportedSystem)
    exception: ReportedException | None = None
    termination: ReportedTermination | None = None
    language_exception: LanguageException | None = None
    application_information: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Apple's *Application Specific Information*: an image's name (empty where none is said), and
    what it said."""
    others: tuple[ReportedTask, ...] = ()
    """Further processes of the same report: a spindump's, a stackshot's."""
    details: Details = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """What was odd or could not be understood, each in one line."""

    def lines(self) -> Iterator[str]:
        """Yield the incident, its cause, and all threads with their frames."""
        incident, system = self.incident, self.system
        facts: list[tuple[str, tuple[str | None, ...]]] = [
            ("Report", (self.kind.value, incident.kind, incident.time)),
            ("System", (system.model, system.os_name, system.os_build)),
        ]
        if (cause := self.exception) is not None:
            codes = cause.subtype or cause.codes
            facts.append(("Exception", (cause.type, cause.signal, codes, cause.message)))
        if (end := self.termination) is not None:
            facts.append(("Termination", (end.namespace, end.indicator, *end.reasons)))
        if (thrown := self.language_exception) is not None:
            facts.append(("Uncaught exception", (thrown.name, thrown.reason)))
        for name, words in facts:
            if text := _words("  ", *words):
                yield f"{name}: {printable(text)}"
        yield from ReportedTask.lines(self)
        if thrown is not None and thrown.frames:
            yield from ("", "Last exception", *self._frame_lines(thrown.frames))
        for task in self.others:
            yield from ("", *task.lines())

    @property
    def tasks(self) -> tuple[ReportedTask, ...]:
        """This process, then the others."""
        return (self, *self.others)

    @property
    def crashed_thread(self) -> ReportedThread | None:
        """The thread that the report is about, where it says which."""
        return next((thread for thread in self.threads if thread.crashed), None)


FrameChange: TypeAlias = Callable[[Sequence[ReportedFrame]], tuple[ReportedFrame, ...] | None]
"""Maps the frames of a stack to as many others; None if all stay."""

_Task = TypeVar("_Task", bound=ReportedTask)


def with_changed_frames(task: _Task, change: FrameChange) -> _Task:
    """Return the process with the frames of its threads and trees changed.

    A thread, a tree or a process without a changed frame stays the same object.
    """
    threads = tuple(_changed_thread(thread, change) for thread in task.threads)
    if any(new is not old for new, old in zip(threads, task.threads, strict=True)):
        task = replace(task, threads=threads)
    trees = tuple(_changed_tree(tree, change) for tree in task.trees)
    if any(new is not old for new, old in zip(trees, task.trees, strict=True)):
        task = replace(task, trees=trees)
    return task


def _changed_thread(thread: ReportedThread, change: FrameChange) -> ReportedThread:
    frames = change(thread.frames)
    return thread if frames is None else replace(thread, frames=frames)


def _changed_tree(tree: SampledTree, change: FrameChange) -> SampledTree:
    frames = change([node.frame for node in tree.nodes])
    if frames is None:
        return tree
    pairs = zip(tree.nodes, frames, strict=True)
    return replace(tree, nodes=tuple(node._replace(frame=frame) for node, frame in pairs))
