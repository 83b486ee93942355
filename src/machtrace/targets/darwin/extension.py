"""The extension that calls the macOS kernel, ``native/darwin_task``, or a stand-in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from machtrace.errors import TargetSpecError

if TYPE_CHECKING:
    from machtrace._native._darwin_task import CopyRow, PortRow, ProcessRow, RightsRow, ThreadRow


class TaskExtension(Protocol):
    """What the extension offers; results are those of the kernel, and nothing is raised.

    See ``native/darwin_task/task.h`` for the meaning of each.
    """

    def process(self, pid: int, /) -> tuple[int, ProcessRow | None]:
        """An errno, and what the system says of a process."""
        ...

    def rights(self) -> RightsRow:
        """What this process may do."""
        ...

    def open_task(self, pid: int, /) -> PortRow:
        """A task port, or why there is none."""
        ...

    def close_task(self, port: int, /) -> None:
        """Give a port back."""
        ...

    def find_region(self, port: int, address: int, /) -> tuple[int, int, int, int, int]:
        """Result, start, size, protection and tag of the region there, or of the next above."""
        ...

    def read_memory(self, port: int, ranges: list[tuple[int, int]], /) -> list[bytes]:
        """The bytes of each range, address and size, as far as they can be read."""
        ...

    def dyld_info(self, port: int, /) -> tuple[int, int, int, int]:
        """Result; address, size and format of ``dyld_all_image_infos``."""
        ...

    def label_offset(self) -> tuple[int, int] | None:
        """Version, and where a dispatch queue has its label."""
        ...

    def list_threads(self, port: int, /) -> tuple[int, list[ThreadRow]]:
        """Result, and the threads in the kernel's order."""
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
        """Result, result of resuming, and each thread as it stood."""
        ...


def task_extension() -> TaskExtension:
    """The extension.

    Raises:
        TargetSpecError: this is no Mac, or the package was installed without it.
    """
    try:
        from machtrace._native import _darwin_task
    except ImportError as error:
        raise TargetSpecError(
            "processes of macOS are captured by the extension _darwin_task, which is not here",
            remedy="install machtrace on a Mac with Xcode's command line tools, or open a core",
        ) from error
    return _darwin_task
