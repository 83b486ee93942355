"""What the kernel of macOS answers: ``mach/kern_return.h``, ``mach/message.h``."""

from __future__ import annotations

KERN_SUCCESS = 0
KERN_INVALID_ARGUMENT = 4
KERN_FAILURE = 5
KERN_INVALID_TASK = 16
KERN_TERMINATED = 37
MACH_SEND_INVALID_DEST = 0x10000003

GONE = frozenset({KERN_TERMINATED, KERN_INVALID_TASK, MACH_SEND_INVALID_DEST})
"""What calls say whose task or thread is no longer there."""

_NAMES = {
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


def result_name(result: int) -> str:
    """A result as headers call it, or its number."""
    return _NAMES.get(result, f"{result:#x}")
