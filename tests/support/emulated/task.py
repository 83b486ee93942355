"""Another task, as the Mach kernel shows it to a caller with its port; see :mod:`.mach`.

Sources: xnu's ``bsd/kern/kern_proc.c`` for how ports are given by pid, ``osfmk/kern/task.c`` for
suspending by a token, ``osfmk/mach/thread_info.h`` for facts about threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from struct import pack

from tests.support.emulated.library import BINDER, Function
from tests.support.emulated.mach import (
    SAFE_WHILE_SUSPENDED,
    TASK,
    KernReturn,
    MachTask,
    MachThread,
)

OWN_PID = 4000
_FAILED = -1 % (1 << 64)
_PORT = 0x1F03
_TOKEN = 0x2F03
_RIGHT_SEND = 0
_EXTENDED_INFO = (5, 28)
_IDENTIFIER_INFO = (4, 6)
_NAME_SIZE = 64
USER_NS, SYSTEM_NS = (1 << 40) + 1000, 2000
"""The processor times of each thread."""
WAITING = 3
"""``TH_STATE_WAITING``, the state of each thread."""
_RESUMING = frozenset({"_task_suspend2", "_task_resume2", "_mach_port_deallocate"})
_SAFE = SAFE_WHILE_SUSPENDED | _RESUMING | {BINDER}
"""The binder takes dyld's lock, which is the caller's own: another task's threads hold others."""


@dataclass
class OtherTask(MachTask):
    """A task that is not the caller's; the caller is no thread of it."""

    pid: int = 4711
    read_errno: int = 0
    """The result of ``task_read_for_pid``; 0 gives a port."""
    control_answer: KernReturn = KernReturn.SUCCESS
    name_answer: KernReturn = KernReturn.SUCCESS
    is_exiting: bool = False
    """Whether ports by pid are none, though nothing fails."""
    names: dict[int, bytes] = field(default_factory=dict)
    """The threads' names, by id."""
    queue_addresses: dict[int, int] = field(default_factory=dict)
    """Where threads keep their queue, by id."""
    holds: int = 0
    """How often the whole task is suspended."""
    errno_at: int = 0
    """Where the caller has its errno."""

    def observe(self, name: str) -> None:
        """See :meth:`MachTask.observe`."""
        self.calls.append(name)
        if self.is_checked and name not in _SAFE:
            self.assert_all_run(f"{name} is called")

    def assert_all_run(self, what: str = "at the end") -> None:
        """Neither a thread nor the task is suspended."""
        assert not self.holds, f"the task is suspended: {what}"
        assert not self._is_any_suspended(), f"a thread is suspended: {what}"

    @property
    def functions(self) -> Mapping[str, Function]:
        """By the symbols that they are imported by."""
        fallible: dict[str, Callable[[Sequence[int]], int]] = {
            "_task_suspend2": self._task_suspend2,
            "_task_resume2": self._task_resume2,
            "_mach_port_mod_refs": self._mach_port_mod_refs,
        }
        return {
            **super().functions,
            **{name: self._or_fault(name, call) for name, call in fallible.items()},
            "_task_read_for_pid": self._task_read_for_pid,
            "_task_for_pid": lambda args: self._for_pid(args, self.control_answer),
            "_task_name_for_pid": lambda args: self._for_pid(args, self.name_answer),
            "___error": lambda _: self.errno_at,
            "_getpid": lambda _: OWN_PID,
            "_dlsym": lambda _: 0,
        }

    # --- ports by pid ---

    def _give(self, place: int) -> int:
        port = 0 if self.is_exiting else _PORT
        if port:
            self.rights[port] += 1
        self.memory.set_word(place, port, 4)
        return KernReturn.SUCCESS

    def _task_read_for_pid(self, arguments: Sequence[int]) -> int:
        _, pid, place = arguments[:3]
        errno = self.read_errno if pid == self.pid else 3  # ESRCH
        if errno:
            self.memory.set_word(self.errno_at, errno, 4)
            self.memory.set_word(place, 0, 4)
            return _FAILED
        return self._give(place)

    def _for_pid(self, arguments: Sequence[int], answer: KernReturn) -> int:
        _, pid, place = arguments[:3]
        return self._give(place) if pid == self.pid and not answer else answer or KernReturn.FAILURE

    def _mach_port_mod_refs(self, arguments: Sequence[int]) -> int:
        task, port, right, delta = arguments[:4]
        assert task % (1 << 32) == TASK, "another task's rights"
        assert right % (1 << 32) == _RIGHT_SEND, "another kind of right"
        self.rights[port % (1 << 32)] += delta
        return KernReturn.SUCCESS

    # --- suspending it ---

    def _task_suspend2(self, arguments: Sequence[int]) -> int:
        self._check(arguments[0])
        self.holds += 1
        self._add_to_counts(1)
        self.rights[_TOKEN] += 1
        self.memory.set_word(arguments[1], _TOKEN, 4)
        return KernReturn.SUCCESS

    def _task_resume2(self, arguments: Sequence[int]) -> int:
        self._give_up_token(arguments[0])
        return KernReturn.SUCCESS

    def _mach_port_deallocate(self, arguments: Sequence[int]) -> int:
        if arguments[1] % (1 << 32) == _TOKEN:
            self._give_up_token(arguments[1])
            return KernReturn.SUCCESS
        return super()._mach_port_deallocate(arguments)

    def _give_up_token(self, token: int) -> None:
        assert self.rights[token % (1 << 32)], "a token that is not held"
        self.rights[token % (1 << 32)] -= 1
        self.holds -= 1
        self._add_to_counts(-1)

    def _add_to_counts(self, number: int) -> None:
        for thread in self.threads:
            thread.suspend_count += number

    # --- threads and memory ---

    def _check(self, port: int) -> None:
        assert port % (1 << 32) == _PORT, "another port"
        assert self.rights[_PORT], "a port that was given back"

    def _task_threads(self, arguments: Sequence[int]) -> int:
        self._check(arguments[0])
        return super()._task_threads(arguments)

    def _thread_info(self, arguments: Sequence[int]) -> int:
        port, flavour, place, count = arguments[:4]
        thread = self._named(port)
        kind = flavour, self.memory.word(count, 4)
        if thread is None or kind not in (_EXTENDED_INFO, _IDENTIFIER_INFO):
            return super()._thread_info(arguments)
        self.memory.write(place, self._told(thread, is_extended=kind == _EXTENDED_INFO))
        return KernReturn.SUCCESS

    def _told(self, thread: MachThread, *, is_extended: bool) -> bytes:
        if is_extended:
            name = self.names.get(thread.id, b"").ljust(_NAME_SIZE, b"\0")[:_NAME_SIZE]
            return pack("<2Q8i", USER_NS, SYSTEM_NS, 0, 1, WAITING, 0, 0, 31, 31, 63) + name
        return pack("<3Q", thread.id, thread.handle, self.queue_addresses.get(thread.id, 0))

    def _vm_read_overwrite(self, arguments: Sequence[int]) -> int:
        self._check(arguments[0])
        return super()._vm_read_overwrite([TASK, *arguments[1:]])

    def _vm_region_recurse(self, arguments: Sequence[int]) -> int:
        self._check(arguments[0])
        return super()._vm_region_recurse(arguments)

    def _task_info(self, arguments: Sequence[int]) -> int:
        self._check(arguments[0])
        return super()._task_info(arguments)
