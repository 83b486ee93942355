"""The process, its machine and what befell it, as reports have them."""

from __future__ import annotations

from dataclasses import dataclass, field

from machtrace.model.json_value import Details
from machtrace.model.reported_frame import ReportedFrame


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
