"""A report of any format: its process, system and cause, threads, sampled stacks and images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import Enum
from typing import NamedTuple, TypeAlias, Union
from uuid import UUID

from machtrace.frozen import dataclass
from machtrace.model.address import Avma, ImageOffset
from machtrace.model.image import BuildId
from machtrace.model.incident.facts import WatchFacts
from machtrace.model.symbol import SourceLocation
from machtrace.model.text import Document, counted, printable, report_lines, task_lines

JsonValue: TypeAlias = Union[bool, int, float, str, "list[JsonValue]", "dict[str, JsonValue]", None]
"""A JSON value; treated as immutable."""

Details: TypeAlias = Mapping[str, JsonValue]
"""Keys of a source without a field in the model, with their values, in the source's order."""

NO_DETAILS: Details = {}
"""The shared empty value."""


class Adjustment(Enum):
    """How a frame's address relates to the instruction that was running."""

    EXACT = "exact"
    """The instruction itself: the thread was interrupted or stopped there."""
    RETURN = "return"
    """A return address: the call is the instruction before it."""
    ALREADY_ADJUSTED = "already-adjusted"
    """A return address from which the report's writer subtracted a byte or an instruction."""
    UNKNOWN = "unknown"
    """Not stated by the format."""


class NameSource(Enum):
    """The source of a frame's name."""

    REPORT = "report"
    """The report, whose writer looked it up by unknown means."""
    DEBUG_INFORMATION = "debug-information"
    EXACT = "exact"
    """This and the following: see :class:`~machtrace.model.symbol.Certainty`."""
    EXPORT = "export"
    OBJC = "objc"
    RTTI = "rtti"
    SWIFT = "swift"
    PCLNTAB = "pclntab"
    STUB = "stub"


class ReportedSymbol(NamedTuple):
    """A function's name, and the frame's offset in it."""

    name: str
    """The name as written, demangled or not."""
    offset: int | None
    """Bytes from the function's start to the frame's address; None if unknown."""
    source: NameSource = NameSource.REPORT

    def __str__(self) -> str:
        return self.name if self.offset is None else f"{self.name} + {self.offset}"


class ReportedFrame(NamedTuple):
    """One line of a stack. A tuple, as reports have hundreds of thousands.

    An inlined call is a frame of its own, before the machine frame whose address it shares.
    """

    address: Avma | None
    """The report's address without signature bits; None if absent."""
    image: int | None
    """The index of its image in the report; None if unknown."""
    offset: ImageOffset | None
    """Bytes from that image's load address, in ELF the lowest one; None if unknown."""
    adjustment: Adjustment = Adjustment.UNKNOWN
    symbol: ReportedSymbol | None = None
    location: SourceLocation | None = None
    is_inline: bool = False
    """Whether the call is inlined into the next frame."""
    details: Details = NO_DETAILS

    @property
    def lookup(self) -> ImageOffset | None:
        """The offset to look up: inside the call, not after it.

        An offset that is already adjusted, or of unknown meaning, is unchanged.
        """
        if self.offset is None:
            return None
        if self.adjustment is Adjustment.RETURN and self.offset > 0:
            return ImageOffset(self.offset - 1)
        return self.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedProcess:
    """A process; absent facts are None."""

    name: str | None = None
    pid: int | None = None
    path: str | None = None
    identifier: str | None = None
    """The bundle identifier."""
    version: str | None = None
    """``CFBundleShortVersionString``."""
    build: str | None = None
    """``CFBundleVersion``."""
    code_type: str | None = None
    """The report's word: ``ARM-64``."""
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
        pid = "" if self.pid is None else f" [{self.pid}]"
        version = "" if self.version is None else f"  {self.version}"
        return printable(f"{self.name or 'process'}{pid}{version}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedSystem:
    """The machine and its system; absent facts are None."""

    model: str | None = None
    """``iPhone14,2``."""
    os_name: str | None = None
    """The system and its version: ``iPhone OS 16.0``."""
    os_build: str | None = None
    """``20A362``."""
    release_type: str | None = None
    baseband_version: str | None = None
    crash_reporter_key: str | None = None
    """An anonymous identifier of the machine."""
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedException:
    """The cause of the report, as stated by the kernel or the runtime.

    Linux has no exceptions: :attr:`type` is None there, and the code is text, as in
    ``SEGV_MAPERR at 0x0000000000000010``.
    """

    type: str | None = None
    """``EXC_BREAKPOINT``."""
    signal: str | None = None
    """``SIGTRAP``."""
    codes: str | None = None
    """The text: ``0x0000000000000001, 0x000000018a98520c``."""
    raw_codes: tuple[int, ...] = ()
    subtype: str | None = None
    """``KERN_INVALID_ADDRESS at 0x0000000000000010``."""
    message: str | None = None
    address: int | None = None
    """The address of the failed access (Avma)."""
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
    """An uncaught exception of Objective-C, C++ or Swift."""

    name: str | None = None
    reason: str | None = None
    frames: tuple[ReportedFrame, ...] = ()
    """The stack of the throw, innermost first: Apple's *Last Exception Backtrace*."""
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """The incident: its kind, time and identifier."""

    id: str | None = None
    """As the report writes it."""
    time: str | None = None
    """The time of the incident, as text."""
    kind: str | None = None
    """The kind in the format's words: Apple's ``bug_type``, KSCrash's ``type``."""
    report_version: str | None = None
    details: Details = field(default_factory=dict)


class ReportedRegister(NamedTuple):
    """A register's value in a report."""

    name: str
    """The report's name: ``x0``, ``rip``."""
    value: int
    """The unsigned value, with signature bits."""
    description: str | None = None
    """The report's explanation: ``(Breakpoint) brk 1``."""
    details: Details = NO_DETAILS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRegisters:
    """A thread's registers."""

    registers: tuple[ReportedRegister, ...]
    """In the report's order."""
    flavor: str | None = None
    """The kind of state: ``ARM_THREAD_STATE64``; None if only the registers' names are known."""
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedThread:
    """A thread with its stack."""

    index: int
    """The report's number, from 0."""
    id: int | None = None
    """The system-wide id; None if absent."""
    name: str | None = None
    queue: str | None = None
    """The label of the dispatch queue that the thread served."""
    crashed: bool = False
    """Whether the report is about this thread."""
    frames: tuple[ReportedFrame, ...] = ()
    """The frames, innermost first, whatever the file's order."""
    registers: ReportedRegisters | None = None
    details: Details = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<ReportedThread {self.index}: {counted(len(self.frames), 'frame')}>"


class SampledNode(NamedTuple):
    """A frame of a tree, with the number of samples through it."""

    parent: int | None
    """The caller's index, which is smaller; None for a root."""
    samples: int
    frame: ReportedFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTree:
    """The samples of one thread, or of all; callers are parents unless the tree is inverted.

    The nodes are a tuple, parents before children and siblings in the report's order: trees of any
    depth are handled without recursion.
    """

    nodes: tuple[SampledNode, ...]
    thread: int | None = None
    """The thread's system-wide id; None for all threads, or if absent."""
    name: str | None = None
    """The thread's name."""
    queue: str | None = None
    count: int | None = None
    """The number of all samples, if the report states it besides the roots' counts."""
    is_attributed: bool = False
    """Whether the report is about this thread."""
    is_inverted: bool = False
    """Whether roots are innermost frames and parents are callees. Such a tree is not converted:
    that could take the square of its size."""
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
        """Yield the number of callers of each node, in order."""
        depths: list[int] = []
        for node in self.nodes:
            depths.append(0 if node.parent is None else depths[node.parent] + 1)
            yield depths[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedImage:
    """An image that a report lists or mentions."""

    uuid: UUID | BuildId | None = None
    """The identifier; None if it is absent or zero."""
    name: str = ""
    """The name; empty if absent."""
    path: str = ""
    """The path on the report's machine; empty if unknown."""
    arch: str | None = None
    """The report's name of the architecture: ``arm64e``."""
    load_address: Avma | None = None
    """The address of the header; in ELF the page of the lowest ``PT_LOAD``."""
    size: int | None = None
    """The size of the code (``__TEXT``), in bytes."""
    version: str | None = None
    """``CFBundleShortVersionString``, or its equivalent."""
    details: Details = field(default_factory=dict)

    @property
    def is_only_named(self) -> bool:
        """Whether nothing else is known of it, so that lists of images leave it out."""
        is_placed = self.load_address is not None or self.size is not None
        return self.uuid is None and not self.path and not is_placed

    def holds(self, address: int) -> bool:
        """Return whether the image contains ``address`` (Avma); False if its extent is unknown."""
        if self.load_address is None or self.size is None:
            return False
        return self.load_address <= address < self.load_address + self.size


class ReportKind(Enum):
    """The format of a report."""

    APPLE_IPS = "ips"
    APPLE_CRASH = "crash"
    METRICKIT = "metrickit"
    KSCRASH = "kscrash"
    PLCRASH = "plcrash"
    SAMPLE = "sample"
    SPINDUMP = "spindump"
    MICROSTACKSHOT = "microstackshot"
    CALL_STACK_SYMBOLS = "call-stack-symbols"
    BS = "bs"
    """BSBacktraceLogger's text."""
    LLDB = "lldb"
    GDB = "gdb"
    SANITIZER = "sanitizer"
    SWIFT = "swift"
    """A backtrace of Swift's runtime, as text or as JSON."""
    FOLDED = "folded"
    """Folded stacks, as flamegraph.pl reads them."""
    SPEEDSCOPE = "speedscope"
    PPROF = "pprof"
    FIREFOX = "firefox"
    OTLP = "otlp"
    """Profiles of OpenTelemetry."""
    SENTRY = "sentry"
    """An event or a profile of Sentry's clients."""
    SPOOL = "spool"
    """The agent's record of watched functions."""
    MACHTRACE = "machtrace"
    """machtrace's own: JSON of reports, stacks and profiles, and the text of stacks."""

    @property
    def weight(self) -> str:
        """The noun for what trees count."""
        return "call" if self is ReportKind.SPOOL else "sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTask:
    """A process in a report, with its threads and images."""

    process: ReportedProcess = field(default_factory=ReportedProcess)
    threads: tuple[ReportedThread, ...] = ()
    """In the report's order."""
    trees: tuple[SampledTree, ...] = ()
    images: tuple[ReportedImage, ...] = ()
    """The images that frames of this task refer to, in the report's order."""

    def __str__(self) -> str:
        return "\n".join(task_lines(self))

    def __repr__(self) -> str:
        parts = ((self.threads, "thread"), (self.trees, "tree"), (self.images, "image"))
        counts = ", ".join(counted(len(part), noun) for part, noun in parts if part) or "nothing"
        return f"<{type(self).__name__} of {str(self.process).replace('  ', ' ')}: {counts}>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report(ReportedTask, Document):
    """One incident. Warnings are not compared.

    Keys of the source without a field here are in the ``details`` of the value that they describe,
    by the source's names and in its order: nothing is dropped.
    """

    kind: ReportKind
    incident: Incident = field(default_factory=Incident)
    watch: WatchFacts | None = None
    """A watcher's facts; None in other reports."""
    system: ReportedSystem = field(default_factory=ReportedSystem)
    exception: ReportedException | None = None
    termination: ReportedTermination | None = None
    language_exception: LanguageException | None = None
    application_information: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Apple's *Application Specific Information*: images' names, which may be empty, and their
    messages."""
    others: tuple[ReportedTask, ...] = ()
    """Further processes, as in a spindump or a stackshot."""
    details: Details = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Parts of the source that were invalid or unknown, one line each."""

    def __str__(self) -> str:
        return "\n".join(report_lines(self))

    @property
    def tasks(self) -> tuple[ReportedTask, ...]:
        """This process and the others."""
        return (self, *self.others)

    @property
    def crashed_thread(self) -> ReportedThread | None:
        """The thread that the report is about, if it states one."""
        return next((thread for thread in self.threads if thread.crashed), None)
