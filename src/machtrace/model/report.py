"""What a report holds, whatever it was written by."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from machtrace.model.json_value import Details
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_process import (
    Incident,
    LanguageException,
    ReportedException,
    ReportedProcess,
    ReportedSystem,
    ReportedTermination,
)
from machtrace.model.reported_thread import ReportedThread
from machtrace.model.reported_tree import SampledTree


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


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def tasks(self) -> tuple[ReportedTask, ...]:
        """This process, then the others."""
        return (self, *self.others)

    @property
    def crashed_thread(self) -> ReportedThread | None:
        """The thread that the report is about, where it says which."""
        return next((thread for thread in self.threads if thread.crashed), None)
