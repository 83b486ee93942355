"""CPython's structures, read from memory that is made here: versions, and hostile bytes."""

from __future__ import annotations

import random
import time

import pytest

from machtrace.cpython.layout import layout_of
from machtrace.cpython.objects import LineTable
from machtrace.cpython.threads import read_threads
from machtrace.errors import FormatError, MachtraceError
from machtrace.model.memory import MemoryRegion
from tests.support.writers.python_memory import PythonMemory

VERSIONS = [(3, 11), (3, 12), (3, 13), (3, 14)]
LINES = bytes([0x80 | 13 << 3 | 7, 2] * 8)
"""Eight entries of eight instructions each, every one a line further than the one before."""


def read(memory):
    """Python functions read from synthetic memory."""
    return read_threads(memory.region(), memory.runtime, memory.layout)


def names(found):
    """Thread → names, lines and files of each run."""
    return {
        thread: [
            [(one.name, one.location.path, one.location.line) for one in run]
            for run in found.runs(thread)
        ]
        for thread in found.standing
    }


@pytest.fixture(params=VERSIONS, ids=str)
def memory(request):
    """Memory of each version."""
    return PythonMemory(request.param)


def test_runs_hold_their_functions(memory):
    """Innermost first, with the line of the instruction that each stands at."""
    leaf = memory.code("leaf", "/a/leaf.py", 10, LINES)
    outer = memory.code("Klass.größe", "/a/函数.py", 100, LINES)
    first = memory.interpreter()
    runs = [[memory.frame(leaf, 9), memory.frame(outer, 0)], [memory.frame(outer, 63)]]
    memory.thread(first, 41, runs)
    memory.thread(first, 42, [[memory.frame(leaf, -1)]] if memory.layout.version < (3, 13) else [])
    memory.thread(first, 0, [[memory.frame(leaf, 1)]])
    found = read(memory)

    assert () == found.errors
    told = names(found)
    assert told[41] == [
        [("leaf", "/a/leaf.py", 12), ("Klass.größe", "/a/函数.py", 101)],
        [("Klass.größe", "/a/函数.py", 108)],
    ]
    assert told.get(42, []) in ([], [[("leaf", "/a/leaf.py", 10)]])
    assert 0 not in told


def test_a_run_that_has_no_function_counts(memory):
    """Its function has just returned: a destructor may run meanwhile, in a run further in."""
    if memory.layout.version == (3, 11):
        pytest.skip("its runs begin with a function")
    leaf = memory.code("leaf", "leaf.py", 1, LINES)
    runs = [[memory.frame(leaf, 0)], [], [memory.frame(leaf, 8)]]
    memory.thread(memory.interpreter(), 7, runs)

    assert [1, 0, 1] == [len(run) for run in read(memory).runs(7)]


def test_one_thread_in_two_interpreters(memory):
    """The native stack orders runs of several interpreters, here against the order of creation."""
    code = [memory.code(name, "x.py", 1, LINES) for name in ("inner", "outer")]
    memory.thread(memory.interpreter(), 7, [[memory.frame(code[0], 0)]])
    memory.thread(memory.interpreter(), 7, [[memory.frame(code[1], 0)]])
    found = read(memory)

    assert [["inner"], ["outer"]] == [[one.name for one in run] for run in found.runs(7)]


def test_what_is_bad_of_one_thread_leaves_the_others(memory):
    leaf = memory.code("leaf", "leaf.py", 1, LINES)
    first = memory.interpreter()
    outside = memory.frame(leaf, 200)
    no_code = memory.frame(memory.text("no code"), 0)
    for thread, frame in ((1, outside), (2, no_code), (3, memory.frame(leaf, 0))):
        memory.thread(first, thread, [[memory.frame(leaf, 0)], [frame]])
    found = read(memory)

    assert [3] == list(found.standing)
    assert {1, 2} == {thread for thread, _ in found.errors}


def test_chains_without_an_end(memory):
    """Lists of frames, threads and interpreters."""
    leaf = memory.code("leaf", "leaf.py", 1, LINES)
    first = memory.interpreter()
    frames = [memory.frame(leaf, 0), memory.frame(leaf, 0)]
    state = memory.thread(first, 1, [[memory.frame(leaf, 0)], frames])
    memory.point(frames[1] + memory.layout.frame_previous, frames[0])
    if memory.layout.frame_is_entry is not None:
        memory.write(frames[1] + memory.layout.frame_is_entry, b"\0")
    found = read(memory)
    assert [1] == [thread for thread, _ in found.errors]

    memory.point(state + memory.layout.thread_next, state)
    memory.point(first + memory.layout.interpreter_next, first)
    found = read(memory)
    assert None in [thread for thread, _ in found.errors]


@pytest.mark.parametrize("version", [(3, 11), (3, 12)], ids=str)
def test_a_run_that_just_begins_shows_no_stale_function(version):
    """Its C frame is linked, and holds what was there before."""
    memory = PythonMemory(version)
    code = [memory.code(name, "x.py", 1, LINES) for name in ("stale", "caller")]
    first = memory.interpreter()
    frames = [memory.frame(one, 0) for one in code]
    state = memory.thread(first, 7, [[frames[0]], [frames[1]]])
    c_frame = memory.pointer(state + memory.layout.thread_frame)
    other = memory.thread(first, 8, [[memory.frame(code[0], 0)], [memory.frame(code[0], 0)]])
    stale = memory.pointer(
        memory.pointer(other + memory.layout.thread_frame) + memory.layout.c_frame_current
    )
    memory.point(c_frame + memory.layout.c_frame_current, stale)

    assert [["caller"]] == [[one.name for one in run] for run in read(memory).runs(7)]


def test_versions_that_are_not_known_say_so():
    """And so do free-threaded builds, and offsets that cannot be."""
    with pytest.raises(FormatError, match=r"3\.10"):
        layout_of(bytes(1024), 0x030A0DF0, "x")
    with pytest.raises(FormatError, match="unknown version"):
        layout_of(bytes(1024), None, "x")
    head = bytearray(PythonMemory((3, 14)).data[16 : 16 + 1024])
    later, threaded, far = head[:], head[:], head[:]
    later[8:16] = (0x030F00F0).to_bytes(8, "little")
    threaded[16] = 1
    far[40:48] = (1 << 40).to_bytes(8, "little")
    for bad, word in ((later, r"3\.15"), (threaded, "free-threaded"), (far, "exceed")):
        with pytest.raises(FormatError, match=word) as caught:
            layout_of(bytes(bad), None, "x")
        assert caught.value.remedy


def test_lines_are_those_that_python_finds():
    """All lines of this module's functions, by ``co_lines``."""
    checked = 0
    for function in (one for one in globals().values() if callable(one)):
        code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
        if code is None:
            continue
        table = LineTable(code.co_linetable, code.co_firstlineno)
        for begin, end, line in code.co_lines():
            for offset in range(begin, end, 2):
                assert table.line(offset // 2) == line
                checked += 1
    assert checked > 500


@pytest.mark.parametrize("table", [b"", b"\x00", b"\xff", b"\xf0" + b"\x40" * 5000, b"\x00" * 5000])
def test_tables_that_are_none(table):
    """A line or None, soon."""
    for instruction in (-1, 0, 5, 1 << 40):
        found = LineTable(table, 1).line(instruction)
        assert found is None or isinstance(found, int)


def test_hostile_memory(memory):
    """Any bytes give a value in bounded time, never an exception."""
    leaf = memory.code("leaf", "leaf.py", 1, LINES)
    first = memory.interpreter()
    for thread in range(1, 4):
        memory.thread(first, thread, [[memory.frame(leaf, thread) for _ in range(3)]] * 2)
    whole = memory.region()
    dice = random.Random(7)  # noqa: S311 - not for secrets
    began = time.thread_time()
    for _ in range(1500):
        data = bytearray(whole.data)
        for _ in range(dice.randrange(1, 12)):
            at = dice.randrange(0, len(data) - 8) & ~7
            value = dice.choice(
                [dice.getrandbits(64), dice.randrange(len(data)) + whole.start, 0, (1 << 64) - 8]
            )
            data[at : at + 8] = value.to_bytes(8, "little")
        found = read_threads(MemoryRegion(whole.start, bytes(data)), memory.runtime, memory.layout)
        assert all(isinstance(error, MachtraceError) for _, error in found.errors)
        names(found)
        head = bytes(data[16 : 16 + 1024])
        try:
            layout = layout_of(head, memory.version, "x")
        except MachtraceError:
            continue
        names(read_threads(MemoryRegion(whole.start, bytes(data)), memory.runtime, layout))
    assert time.thread_time() - began < 60
