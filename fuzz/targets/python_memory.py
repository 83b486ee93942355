"""CPython's structures in a process's memory. An input is a version's minor number, then memory."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fuzz.mutation import Mutation
from fuzz.target import ContractError, Target
from machtrace.cpython.layout import HEAD_SIZE, layout_of
from machtrace.cpython.threads import read_threads
from machtrace.errors import MachtraceError
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion
from tests.support.writers.python_memory import PythonMemory

_MINORS = (11, 12, 13, 14)
_RUNTIME = 16
"""Where in made memory ``_PyRuntime`` is."""
_START = 0x7F0000000000
_LINES = bytes([0x80 | 13 << 3 | 7, 2] * 8)
_WORD = 8


def _run(data: bytes) -> None:
    minor, memory = data[:1], MemoryRegion(Avma(_START), data[1:])
    head = data[1 + _RUNTIME : 1 + _RUNTIME + HEAD_SIZE]
    if len(head) < HEAD_SIZE:
        return
    layout = layout_of(head, 3 << 24 | minor[0] << 16, "fuzz")
    threads = read_threads(memory, _START + _RUNTIME, layout)
    for runs in threads.functions.values():
        for run in runs:
            for function in run:
                if not isinstance(function.name, str):
                    raise ContractError("a function without a name")
    if any(not isinstance(error, MachtraceError) for _, error in threads.errors):
        raise ContractError("an error of another kind")


def _seeds() -> Sequence[bytes]:
    seeds = []
    for minor in _MINORS:
        memory = PythonMemory((3, minor))
        code = [memory.code(name, "/a.py", 5, _LINES) for name in ("leaf", "größe", "函数")]
        for _ in range(2):
            interpreter = memory.interpreter()
            for thread in (1, 2):
                runs = [[memory.frame(one, place) for one in code] for place in (0, 40)]
                memory.thread(interpreter, thread, runs)
        seeds.append(bytes([minor]) + memory.region().data)
    return seeds


def _point(data: bytearray, dice: Random) -> None:
    """Replace a word by an address within, or by an extreme."""
    words = (len(data) - 1) // _WORD
    if not words:
        return
    at = 1 + dice.randrange(words) * _WORD
    value = dice.choice((_START + dice.randrange(len(data)), 0, 1, (1 << 64) - 1, 1 << 20))
    data[at : at + _WORD] = value.to_bytes(_WORD, "little")


_MUTATIONS: tuple[Mutation, ...] = (_point,)

TARGET = Target("python_memory", _run, _seeds, _MUTATIONS)
