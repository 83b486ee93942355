"""Threads of an emulated process as Mach's ports: suspended, read and resumed by one another."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

from tests.support.emulated.library import Function
from tests.support.emulated.mach import MachTask, MachThread
from tests.support.emulated.process import EmulatedProcess, Thread

_X86_ORDER = (0, 3, 2, 1, 5, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
"""DWARF's numbers in the order of x86_thread_state64_t."""
_RUNNING, _WAITING = 1, 3
"""TH_STATE_RUNNING, TH_STATE_WAITING"""
_CALLS = (
    "_task_threads",
    "_thread_info",
    "_thread_get_state",
    "_thread_suspend",
    "_thread_resume",
    "_mach_port_deallocate",
    "_vm_deallocate",
)


class EmulatedThreads:
    """The ports of a process' threads, and the kernel's calls that take them."""

    def __init__(self, process: EmulatedProcess) -> None:
        """Provide these calls to the process."""
        self.process = process
        caller = MachThread(0)
        self.task = MachTask(process.memory, process.allocate, process.free, [caller], caller)
        self._ports: dict[int, MachThread] = {}
        for name in _CALLS:
            process.functions[name] = self._synchronized(self.task.functions[name])
        process.functions["_pthread_mach_thread_np"] = self._own_port
        process.observe = self.task.observe

    def _synchronized(self, call: Function) -> Function:
        def called(arguments: Sequence[int]) -> int:
            self._update()
            result = call(arguments)
            assert isinstance(result, int)
            for thread in self.process.threads:
                thread.is_suspended = self._ports[thread.id].suspend_count > 0
            return result

        return called

    def _update(self) -> None:
        """Let the task have the threads that the process has now."""
        for thread in sorted(self.process.threads, key=lambda thread: thread.id):
            if thread.id not in self._ports:
                port = MachThread(thread.id, handle=thread.tsd, port=0x1003 + 0x100 * thread.id)
                self._ports[thread.id] = port
            known = self._ports[thread.id]
            known.is_ended = thread.has_ended
            known.run_state = _RUNNING if thread.waiting is None else _WAITING
            if thread is self.process.running:
                self.task.caller = known
            else:
                known.state = self._state(thread)
        self.task.threads[:] = self._ports.values()

    def _own_port(self, arguments: Sequence[int]) -> int:
        assert arguments[0] == self.process.running.pthread, "another thread's"
        self._update()
        return self.task.caller.port

    def _state(self, thread: Thread) -> bytes:
        """The registers of a thread that does not run.

        One that waits in a function of the system is at its return: such a function has no frame.
        """
        process = self.process
        registers, pc = process.registers_of(thread)
        if process.arch.is_arm64:
            return pack("<33Q2I", *registers[:32], pc, 0, 0)
        return pack("<21Q", *(registers[number] for number in _X86_ORDER), pc, *[0] * 4)
