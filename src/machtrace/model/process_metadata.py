"""JSON metadata of a process, in a note of a Mach-O or an ELF core.

lldb writes ``{"threads": [{"thread_id": …}]}`` in the "process metadata" note of a Mach-O core, one
entry per thread command, and reads no other key (``ObjectFileMachO.cpp``:
``GetCorefileThreadExtraInfos``). Cores of machtrace add facts, in either format, that the format
itself has no field for::

    {"process": {"pid": …, "path": …, "pointer_mask": …},
     "threads": [{"thread_id": …, "name": …, "queue": …, "main": …, "crashed": …, "index": …,
                  "taken_at_ns": …, "stopped_for_ns": …, "pc": …,
                  "registers": {"72": …, "33": null}, "other_registers": {"cpsr": …},
                  "cause": {"signal": …, "signal_number": …, "code": …, "address": …, …}}],
     "images": [{"load_address": …, "header_svma": …, "size": …,
                 "path": …, "build_id": …, "arch": …}],
     "problems": [{"thread": …, "message": …, "remedy": …}]}

``pc`` and, by DWARF number, ``registers`` are those whose values differ from the core's thread
state; null is one that was not captured. ``index`` is present if it differs from the position in
the list. ``images`` of a Mach-O core are only those whose headers it lacks, without a path, which
another note has. ``cause`` has the known fields of a :class:`~machtrace.model.cause.Cause`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from machtrace.errors import TargetError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, Svma
from machtrace.model.cause import Cause
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import Problem, ThreadId, ThreadSnapshot

RegisterChanges = tuple[tuple[int, int | None], ...]
"""DWARF numbers and values; None for a value that was not captured."""

_LIMIT = 1 << 64
_CODE_LIMIT = 1 << 31
_MAX_NAME_LENGTH = 16
_MAX_REGISTERS = 256
"""Above every DWARF number of a register with a role in unwinding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedThread:
    """The note's entry of one thread; None for absent keys."""

    id: ThreadId | None = None
    name: str | None = None
    queue: str | None = None
    is_main: bool | None = None
    crashed: bool | None = None
    index: int | None = None
    """The 1-based index among all threads of the process."""
    taken_at_ns: int | None = None
    stopped_for_ns: int | None = None
    pc: int | None = None
    registers: RegisterChanges = ()
    cause: Cause | None = None
    other_registers: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, thread: ThreadSnapshot, stored: RegisterSet) -> NotedThread:
        """Return the entry of ``thread``; ``stored`` is the core's thread state."""
        info, wanted = thread.info, thread.registers
        sp = wanted.arch.registers.sp
        count = max(len(wanted.values), len(stored.values))
        return cls(
            id=info.id,
            name=info.name,
            queue=info.queue,
            is_main=info.is_main,
            crashed=info.crashed or None,
            index=info.index,
            taken_at_ns=thread.taken_at_ns,
            stopped_for_ns=thread.stopped_for_ns,
            cause=info.cause,
            other_registers=thread.other_registers,
            pc=None if wanted.pc == stored.pc else wanted.pc,
            registers=tuple(
                (number, wanted.get(number))
                for number in range(count)
                if wanted.get(number) != stored.get(number)
                # Every set has a stack pointer, at least that of the thread state.
                and (number != sp or wanted.get(number) is not None)
            ),
        )

    def restored(self, stored: RegisterSet) -> RegisterSet:
        """Return the thread's registers; ``stored`` is the core's thread state."""
        pc = stored.pc if self.pc is None else Avma(self.pc)
        if not self.registers:
            return stored if pc == stored.pc else replace(stored, pc=pc)
        sp = stored.arch.registers.sp
        values = dict(enumerate(stored.values))
        values.update(change for change in self.registers if change != (sp, None))
        last = max((number for number, value in values.items() if value is not None), default=sp)
        return RegisterSet(
            stored.arch, pc, tuple(values.get(number) for number in range(max(last, sp) + 1))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedExtent:
    """The note's entry of an image."""

    load_address: Avma
    header_svma: Svma
    size: int
    """The size in bytes; of a Mach-O, of ``__TEXT``."""
    path: str = ""
    build_id: bytes | None = None
    arch: str | None = None
    """A value of :class:`~machtrace.model.arch.Arch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedProblem:
    """The note's entry of a part of the process that could not be read."""

    thread: ThreadId | None
    message: str
    remedy: str

    @classmethod
    def of(cls, problem: Problem) -> NotedProblem:
        """Return the entry of ``problem``."""
        error = problem.error
        return cls(thread=problem.thread, message=str(error), remedy=error.remedy)

    @property
    def problem(self) -> Problem:
        """The problem, as in a snapshot."""
        return Problem(thread=self.thread, error=TargetError(self.message, remedy=self.remedy))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMetadata:
    """The note's contents."""

    threads: tuple[NotedThread, ...] = ()
    """One entry per thread of the core, in their order."""
    pid: int | None = None
    path: str = ""
    """The program's path; empty if absent."""
    pointer_mask: int | None = None
    """The address bits of a pointer."""
    extents: tuple[NotedExtent, ...] = ()
    problems: tuple[NotedProblem, ...] = ()


def metadata_of_json(data: bytes) -> ProcessMetadata | None:
    """Parse a note; None if it is not a JSON object. Unknown keys are ignored."""
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    process = value.get("process")
    if not isinstance(process, dict):
        process = {}
    return ProcessMetadata(
        threads=tuple(_thread(item) for item in _list(value.get("threads"))),
        pid=_integer(process.get("pid")),
        path=_string(process.get("path")) or "",
        pointer_mask=_integer(process.get("pointer_mask")) or None,
        extents=tuple(_extents(_list(value.get("images")))),
        problems=tuple(_problems(_list(value.get("problems")))),
    )


def json_of_metadata(metadata: ProcessMetadata) -> bytes:
    """Return the note's bytes."""
    value = {
        "process": _without_none(
            {
                "pid": metadata.pid,
                "path": metadata.path or None,
                "pointer_mask": metadata.pointer_mask,
            }
        ),
        "threads": [
            _without_none(
                {
                    "thread_id": thread.id,
                    "name": thread.name,
                    "queue": thread.queue,
                    "main": thread.is_main,
                    "crashed": thread.crashed,
                    "index": None if thread.index == place else thread.index,
                    "taken_at_ns": thread.taken_at_ns,
                    "stopped_for_ns": thread.stopped_for_ns,
                    "pc": thread.pc,
                    "registers": dict(thread.registers) or None,
                    "cause": None if thread.cause is None else json_of_cause(thread.cause),
                    "other_registers": dict(thread.other_registers) or None,
                }
            )
            for place, thread in enumerate(metadata.threads, 1)
        ],
        "images": [
            _without_none(
                {
                    "load_address": extent.load_address,
                    "header_svma": extent.header_svma,
                    "size": extent.size,
                    "path": extent.path or None,
                    "build_id": None if extent.build_id is None else extent.build_id.hex(),
                    "arch": extent.arch,
                }
            )
            for extent in metadata.extents
        ],
        "problems": [
            _without_none(
                {"thread": problem.thread, "message": problem.message, "remedy": problem.remedy}
            )
            for problem in metadata.problems
        ],
    }
    return json.dumps({key: part for key, part in value.items() if part}).encode()


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _thread(value: object) -> NotedThread:
    if not isinstance(value, dict):
        return NotedThread()
    number = _integer(value.get("thread_id"))
    return NotedThread(
        id=ThreadId(number) if number else None,  # lldb treats 0 as absent, too
        name=_string(value.get("name")),
        queue=_string(value.get("queue")),
        is_main=_boolean(value.get("main")),
        crashed=_boolean(value.get("crashed")),
        index=_integer(value.get("index")) or None,
        taken_at_ns=_integer(value.get("taken_at_ns")),
        stopped_for_ns=_integer(value.get("stopped_for_ns")),
        pc=_integer(value.get("pc")),
        registers=tuple(_registers(value.get("registers"))),
        cause=cause_of_json(value.get("cause")),
        other_registers=tuple(_other_registers(value.get("other_registers"))),
    )


def json_of_cause(cause: Cause) -> dict[str, Any]:
    """Return the known facts of ``cause``, by the names of its fields."""
    facts = {field.name: getattr(cause, field.name) for field in fields(Cause)}
    facts["exception_codes"] = list(cause.exception_codes)
    return {name: fact for name, fact in facts.items() if fact not in (None, "", [])}


def cause_of_json(value: object) -> Cause | None:
    """Return the cause that :func:`json_of_cause` wrote; None for anything else."""
    if not isinstance(value, dict):
        return None
    address, trap_address = _integer(value.get("address")), _integer(value.get("trap_address"))
    code = value.get("code")
    cause = Cause(
        signal=_string(value.get("signal")),
        signal_number=_integer(value.get("signal_number")),
        # The codes of signals that processes send are negative.
        code=code if type(code) is int and abs(code) < _CODE_LIMIT else None,
        code_name=_string(value.get("code_name")),
        exception=_string(value.get("exception")),
        exception_codes=tuple(
            number
            for number in map(_integer, _list(value.get("exception_codes")))
            if number is not None
        ),
        meaning=_string(value.get("meaning")) or "",
        address=None if address is None else Avma(address),
        region=_string(value.get("region")) or "",
        sender=_integer(value.get("sender")),
        sender_user=_integer(value.get("sender_user")),
        trap=_string(value.get("trap")) or "",
        trap_address=None if trap_address is None else Avma(trap_address),
    )
    return cause if cause.signal or cause.exception or cause.trap else None


def _other_registers(value: object) -> Iterator[tuple[str, int]]:
    for name, content in value.items() if isinstance(value, dict) else ():
        number = _integer(content)
        if number is not None and name.isidentifier() and len(name) < _MAX_NAME_LENGTH:
            yield name, number


def _registers(value: object) -> Iterator[tuple[int, int | None]]:
    if not isinstance(value, dict):
        return
    for key, content in value.items():
        # int() accepts digits of other scripts.
        number = int(key) if key.isascii() and key.isdecimal() and len(key) <= len("255") else -1
        known = _integer(content)
        if 0 <= number < _MAX_REGISTERS and (known is not None or content is None):
            yield number, known


def _extents(values: list[object]) -> Iterator[NotedExtent]:
    for value in values:
        if isinstance(value, dict):
            address, svma, size = (
                _integer(value.get(key)) for key in ("load_address", "header_svma", "size")
            )
            if address is not None and svma is not None and size is not None:
                yield NotedExtent(
                    load_address=Avma(address),
                    header_svma=Svma(svma),
                    size=size,
                    path=_string(value.get("path")) or "",
                    build_id=_bytes(value.get("build_id")),
                    arch=_string(value.get("arch")),
                )


def _problems(values: list[object]) -> Iterator[NotedProblem]:
    for value in values:
        if isinstance(value, dict):
            thread = _integer(value.get("thread"))
            yield NotedProblem(
                thread=None if thread is None else ThreadId(thread),
                message=_string(value.get("message")) or "something was missing",
                remedy=_string(value.get("remedy")) or "capture again",
            )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _boolean(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _LIMIT else None


def _string(value: object) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    # JSON can spell half of a surrogate pair, which no encoder accepts.
    return value.encode("utf-8", "replace").decode()


def _bytes(value: object) -> bytes | None:
    try:
        return bytes.fromhex(value) if isinstance(value, str) and value else None
    except ValueError:
        return None
