"""The extension that calls the macOS kernel, ``native/darwin_task``, or a stand-in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from machtrace.errors import TargetSpecError

if TYPE_CHECKING:
    from machtrace._native._darwin_task import CopyRow, PortRow, ProcessRow, RightsRow, ThreadRow


# Results of calls, from mach/kern_return.h and mach/message.h
KERN_SUCCESS = 0
KERN_INVALID_ARGUMENT = 4
KERN_FAILURE = 5
KERN_INVALID_TASK = 16
KERN_TERMINATED = 37
MACH_SEND_INVALID_DEST = 0x10000003

GONE = frozenset({KERN_TERMINATED, KERN_INVALID_TASK, MACH_SEND_INVALID_DEST})
"""Results of calls whose task or thread no longer exists."""

RESULT_NAMES = {
    1: "KERN_INVALID_ADDRESS",
    2: "KERN_PROTECTION_FAILURE",
    3: "KERN_NO_SPACE",
    KERN_INVALID_ARGUMENT: "KERN_INVALID_ARGUMENT",
    KERN_FAILURE: "KERN_FAILURE",
    6: "KERN_RESOURCE_SHORTAGE",
    8: "KERN_NO_ACCESS",
    14: "KERN_ABORTED",
    15: "KERN_INVALID_NAME",
    KERN_INVALID_TASK: "KERN_INVALID_TASK",
    17: "KERN_INVALID_RIGHT",
    20: "KERN_INVALID_CAPABILITY",
    KERN_TERMINATED: "KERN_TERMINATED",
    46: "KERN_NOT_SUPPORTED",
    49: "KERN_OPERATION_TIMED_OUT",
    53: "KERN_DENIED",
    MACH_SEND_INVALID_DEST: "MACH_SEND_INVALID_DEST",
    0x10004003: "MACH_RCV_TIMED_OUT",
    0x10004005: "MACH_RCV_INTERRUPTED",
}


class TaskExtension(Protocol):
    """The extension's functions; results are the kernel's, and nothing is raised.

    See ``native/darwin_task/task.h`` for the meaning of each.
    """

    def process(self, pid: int, /) -> tuple[int, ProcessRow | None]:
        """Return an errno, and the system's facts about a process."""
        ...

    def rights(self) -> RightsRow:
        """Return the rights of this process."""
        ...

    def open_task(self, pid: int, /) -> PortRow:
        """Open a task port; the row has the reason if it is refused."""
        ...

    def close_task(self, port: int, /) -> None:
        """Release a port."""
        ...

    def find_region(self, port: int, address: int, /) -> tuple[int, int, int, int, int]:
        """Return result, start, size, protection and tag of the region there or next above."""
        ...

    def read_memory(self, port: int, ranges: list[tuple[int, int]], /) -> list[bytes]:
        """Read the bytes of each range, address and size, as far as they are readable."""
        ...

    def dyld_info(self, port: int, /) -> tuple[int, int, int, int]:
        """Return a result, and address, size and format of ``dyld_all_image_infos``."""
        ...

    def label_offset(self) -> tuple[int, int] | None:
        """Return the version, and the offset of the label in a dispatch queue."""
        ...

    def list_threads(self, port: int, /) -> tuple[int, list[ThreadRow]]:
        """Return a result, and the threads in the kernel's order."""
        ...

    def copy_threads(
        self,
        port: int,
        threads: tuple[int, ...],
        stack_limit: int,
        address_mask: int,
        together: bool,  # noqa: FBT001 - as the extension has it
        /,
    ) -> tuple[int, int, list[CopyRow]]:
        """Return the result, the result of resuming, and the copies."""
        ...


def task_extension() -> TaskExtension:
    """Import the extension.

    Raises:
        TargetSpecError: this is not a Mac, or the package was installed without it.
    """
    try:
        from machtrace._native import _darwin_task
    except ImportError as error:
        raise TargetSpecError(
            "machtrace was installed without its extension _darwin_task, which captures processes "
            "of macOS",
            remedy="install machtrace on a Mac with Xcode's command line tools, or open a core",
        ) from error
    return _darwin_task


def result_name(result: int) -> str:
    """Return a result's name in ``mach/kern_return.h`` and ``mach/message.h``, or its number."""
    return RESULT_NAMES.get(result, f"{result:#x}")
