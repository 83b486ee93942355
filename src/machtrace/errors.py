"""Every exception this package raises.

    MachtraceError
    ├── TargetError               a process, core or snapshot cannot be observed
    │   ├── TargetSpecError         the target specification is invalid
    │   ├── TargetAccessError       the kernel refused access
    │   ├── TargetGoneError         the process exited or does not exist
    │   ├── ThreadGoneError         one thread exited during capture
    │   ├── ConnectionLostError     the peer is unreachable or stopped answering
    │   ├── RemoteProtocolError     the peer violated its protocol
    │   └── DeviceError             an iOS device is missing, or it or a service refused
    ├── MemoryReadError           an address is not readable
    ├── FormatError               bytes are malformed
    │   ├── MachOError
    │   ├── ElfError
    │   ├── DwarfError
    │   └── CoreFileError
    ├── DebugInformationError     a file's debug information is unreadable as a whole
    ├── FileAccessError           a file cannot be opened, read or written
    ├── AmbiguousImageError       several images match a name without an identifier
    ├── ArgumentError             an argument is invalid
    ├── MemoryLimitError          a query needs more memory than it may use
    ├── RulesError                a file of rules, of an audit or of groups, is invalid
    └── MissingExtraError         an optional dependency is not installed

These are results, not errors: a stack that ends early (:class:`~machtrace.model.stack.Stop`), a
frame without a name (:class:`~machtrace.model.symbol.FrameStatus`), an image without symbols.

``str(error)`` is the fact: what happened, and where. ``error.remedy`` is the hint: what the user
can do, in the imperative. The command line prints them as two lines, the second after ``hint:``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence


class MachtraceError(Exception):
    """The base class of all errors that machtrace raises."""

    remedy: str = "report this as a bug, with the input that caused it"
    """The hint: what the user can do, in the imperative, without a full stop."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        if remedy is not None:
            self.remedy = remedy

    def __reduce__(self) -> tuple[Callable[..., MachtraceError], tuple[object, ...]]:
        """Support copying and pickling: constructors take facts by keyword, which args lack."""
        facts = dict(vars(self))
        if isinstance(self, OSError):  # it stores some attributes outside of its __dict__
            facts |= {name: getattr(self, name) for name in _OS_FACTS}
        return _restored, (type(self), self.args, facts)


_OS_FACTS = ("errno", "strerror", "filename")


def _restored(
    kind: type[MachtraceError], args: tuple[object, ...], facts: dict[str, object]
) -> MachtraceError:
    error = kind.__new__(kind)
    error.args = args
    for name, fact in facts.items():
        if fact is not None:
            setattr(error, name, fact)
    return error


class TargetError(MachtraceError):
    """The target cannot be observed."""


class TargetSpecError(TargetError, ValueError):
    """Invalid target specification."""

    remedy = "pass the id of a process; `machtrace backtrace --help` lists other kinds of targets"
    summary: str = ""
    """The fact without the candidates; empty if there are none."""
    candidates: tuple[str, ...] = ()
    """Rows of a table: the targets that the specification could mean."""


class TargetAccessError(TargetError, PermissionError):
    """The kernel refused access to the target."""

    def __init__(self, message: str, *, pid: int, errno: int, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.pid = pid
        self.errno = errno


class TargetGoneError(TargetError, ProcessLookupError):
    """The target exited or does not exist."""

    remedy = "check the process id; the process may have exited"

    def __init__(self, message: str, *, pid: int) -> None:
        super().__init__(message)
        self.pid = pid


class ThreadGoneError(TargetError):
    """One thread of the target exited; the others can be captured."""

    remedy = "no action needed: the thread exited during capture"

    def __init__(self, message: str, *, thread: int) -> None:
        super().__init__(message)
        self.thread = thread


class ConnectionLostError(TargetError, ConnectionError):
    """The peer is unreachable, closed the connection or stopped answering."""

    remedy = "check that the stub is running and that no other client is connected to it"


class RemoteProtocolError(TargetError):
    """The peer violated the gdb-remote protocol or rejected a mandatory request."""

    remedy = "check that a gdb-remote stub listens at the address; a newer one may help"

    def __init__(
        self, message: str, *, request: str, reply: str, remedy: str | None = None
    ) -> None:
        super().__init__(f"{message}: request {request}, reply {reply}", remedy=remedy)
        self.request = request
        """The request, truncated."""
        self.reply = reply
        """The reply, truncated."""


class DeviceError(TargetError):
    """An iOS device is missing, refused a request or lacks a service."""

    remedy = "connect the device by USB, unlock it and trust this computer"

    def __init__(self, message: str, *, udid: str | None, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.udid = udid
        """The device; None if none was selected yet."""


class MemoryReadError(MachtraceError):
    """Bytes at an address are not readable."""

    remedy = "capture again, with more memory included"

    def __init__(self, address: int, size: int) -> None:
        super().__init__(f"cannot read {size} bytes at {address:#x}")
        self.address = address
        """The address, an Avma; an offset if the reader documents it so."""
        self.size = size
        """The number of bytes requested."""


class FormatError(MachtraceError):
    """Bytes are malformed."""

    remedy = "check that the file is complete and unmodified"

    def __init__(
        self, message: str, *, source: str, offset: int, remedy: str | None = None
    ) -> None:
        super().__init__(f"{message}: {source} at {offset:#x}", remedy=remedy)
        self.source = source
        """The file, section or table."""
        self.offset = offset
        """The offset in ``source``, in bytes."""


class MachOError(FormatError):
    """A malformed Mach-O."""


class ElfError(FormatError):
    """A malformed ELF."""


class DwarfError(FormatError):
    """Malformed DWARF."""


class CoreFileError(FormatError):
    """A malformed core: threads, notes or memory."""


class DebugInformationError(MachtraceError):
    """A file's debug information is unreadable: its parser failed or crashed."""

    remedy = "check the file with llvm-dwarfdump --verify, or rebuild it from the same sources"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{reason}: {path}")
        self.path = path
        self.reason = reason


class FileAccessError(MachtraceError, OSError):
    """A file cannot be opened, read or written."""

    remedy = "check that the path exists and is readable"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{reason}: {path}")
        self.path = path
        self.reason = reason


class AmbiguousImageError(MachtraceError):
    """Several images match the name of an image without an identifier."""

    remedy = "pass only the file of the report's build and architecture"

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        super().__init__(
            f"{name} has no UUID in the report, and several images have that name: "
            f"{', '.join(candidates)}"
        )
        self.name = name
        self.candidates = tuple(candidates)


class ArgumentError(MachtraceError, ValueError):
    """Invalid argument."""


def pip_install(requirement: str) -> str:
    """Return the shell command that installs a package for the running interpreter."""
    from shlex import quote

    return f"{quote(sys.executable or 'python3')} -m pip install {quote(requirement)}"


class MemoryLimitError(MachtraceError):
    """A query needs more memory than it may use, or its answer is too large."""

    remedy = "select fewer rows or columns, or count instead of listing"


class RulesError(MachtraceError):
    """A file of rules is invalid.

    Audit rules: it is not TOML, or no call can match a rule. Grouping rules: a line is no rule.
    """

    remedy = "correct the file; docs/audit.md describes its form"


class MissingExtraError(MachtraceError):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, *, extra: str) -> None:
        super().__init__(
            f"{feature} requires the extra {extra!r}",
            remedy=f"install it with: {pip_install(f'machtrace[{extra}]')}",
        )
        self.feature = feature
        self.extra = extra
