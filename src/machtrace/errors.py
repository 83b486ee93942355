"""Every exception this package raises.

    MachtraceError
    ├── TargetError               the process, core or snapshot that is read from
    │   ├── TargetSpecError         the words that name a target name none
    │   ├── TargetAccessError       the kernel refused
    │   ├── TargetGoneError         it exited, or never was
    │   ├── ThreadGoneError         one thread exited; the others can be read
    │   ├── ConnectionLostError     nothing can be reached there, or it no longer answers
    │   ├── RemoteProtocolError     what answers there does not keep to its protocol
    │   └── DeviceError             a phone is not there, or it or its services refuse
    ├── MemoryReadError           an address could not be read
    ├── FormatError               bytes do not follow their format
    │   ├── MachOError
    │   ├── ElfError
    │   ├── DwarfError
    │   └── CoreFileError
    ├── DebugInformationError     a file's debug information could not be read as a whole
    ├── FileAccessError           a file could not be opened or read
    ├── AmbiguousImageError       several images have the name of one without an identifier
    ├── ArgumentError             what a function was called with makes no sense
    └── MissingExtraError         an optional library is not installed

Not here, because they are answers and not failures: a walk that stops early
(:class:`~machtrace.model.stack.Stop`), a frame without a name
(:class:`~machtrace.model.symbol.FrameStatus`), an image without a symbol file.

Every error has a ``remedy``: what the user can do, in the imperative. The
command line prints an error as one line, ``what: where: remedy``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class MachtraceError(Exception):
    """Base of all errors raised here."""

    remedy: str = "report this, with the input that caused it"
    """What the user can do about it, in the imperative, without a full stop."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        if remedy is not None:
            self.remedy = remedy

    def __reduce__(self) -> tuple[Callable[..., MachtraceError], tuple[object, ...]]:
        """As it is, for copying and for going to another process: facts are given by keyword."""
        facts = dict(vars(self))
        if isinstance(self, OSError):  # which keeps some outside of its dictionary
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
    """The target could not be observed."""


class TargetSpecError(TargetError, ValueError):
    """The words that should name a target name none."""

    remedy = (
        "give a process id, self, the path of a core file, gdb://host:port, device://,"
        " frida://local/PID, or emulated:demo"
    )


class TargetAccessError(TargetError, PermissionError):
    """The kernel refused access to the target."""

    def __init__(self, message: str, *, pid: int, errno: int, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.pid = pid
        self.errno = errno


class TargetGoneError(TargetError, ProcessLookupError):
    """The target exited, or there never was one."""

    remedy = "check the process id; the process may have exited"

    def __init__(self, message: str, *, pid: int) -> None:
        super().__init__(message)
        self.pid = pid


class ThreadGoneError(TargetError):
    """One thread of the target exited; the others can still be observed."""

    remedy = "nothing needs doing; the thread ended while it was looked at"

    def __init__(self, message: str, *, thread: int) -> None:
        super().__init__(message)
        self.thread = thread


class ConnectionLostError(TargetError, ConnectionError):
    """What should be reached by a connection is not there, or has gone away, or says nothing."""

    remedy = "check that the stub is running, and that nothing else is connected to it"


class RemoteProtocolError(TargetError):
    """What is connected to does not keep to its protocol, or refuses what it must be able to do."""

    remedy = "check that the address is that of a gdb-remote stub, and use a newer one"

    def __init__(self, message: str, *, asked: str, came: str, remedy: str | None = None) -> None:
        super().__init__(f"{message}: asked {asked}, came {came}", remedy=remedy)
        self.asked = asked
        """The request, shortened."""
        self.came = came
        """The reply, shortened."""


class DeviceError(TargetError):
    """An iOS device is not there, or it refuses, or lacks what is needed."""

    remedy = "connect the device by USB, unlock it and trust this computer"

    def __init__(self, message: str, *, udid: str | None, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.udid = udid
        """Which device; None where none was chosen yet."""


class MemoryReadError(MachtraceError):
    """Bytes at an address are not all readable."""

    remedy = "capture again with more memory included"

    def __init__(self, address: int, size: int) -> None:
        super().__init__(f"cannot read {size} bytes at {address:#x}")
        self.address = address
        """Avma, or an offset where the reader says so."""
        self.size = size
        """In bytes."""


class FormatError(MachtraceError):
    """Bytes do not follow the format that they claim."""

    remedy = "check that the file is complete and was not altered"

    def __init__(
        self, message: str, *, source: str, offset: int, remedy: str | None = None
    ) -> None:
        super().__init__(f"{message}: {source} at {offset:#x}", remedy=remedy)
        self.source = source
        """Which file, section or table, as the user would name it."""
        self.offset = offset
        """Bytes from the start of ``source``."""


class MachOError(FormatError):
    """A malformed Mach-O."""


class ElfError(FormatError):
    """A malformed ELF."""


class DwarfError(FormatError):
    """Malformed DWARF."""


class CoreFileError(FormatError):
    """A malformed core: its threads, notes or memory."""


class DebugInformationError(MachtraceError):
    """Nothing could be made of a file's debug information: its reader refused, or died."""

    remedy = "check the file with llvm-dwarfdump --verify, or make it again from the same build"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{reason}: {path}")
        self.path = path
        self.reason = reason


class FileAccessError(MachtraceError, OSError):
    """A file could not be opened or read."""

    remedy = "check that the path exists and can be read"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{reason}: {path}")
        self.path = path
        self.reason = reason


class AmbiguousImageError(MachtraceError):
    """Files of several images have the name of one that has no identifier."""

    remedy = "search only the file of the build and architecture that the report is of"

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        super().__init__(
            f"{name} has no UUID in the report, and several images are called so: "
            f"{', '.join(candidates)}"
        )
        self.name = name
        self.candidates = tuple(candidates)


class ArgumentError(MachtraceError, ValueError):
    """A function was called with an argument that it can do nothing with."""


class MissingExtraError(MachtraceError):
    """A feature needs an optional library that is not installed."""

    def __init__(self, feature: str, *, extra: str) -> None:
        super().__init__(
            f"{feature} needs the extra {extra!r}",
            remedy=f"install it with: pip install 'machtrace[{extra}]'",
        )
        self.feature = feature
        self.extra = extra
