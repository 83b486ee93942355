"""CPython's structures, read from synthetic memory: all versions, and hostile bytes."""

from __future__ import annotations

import random
import re
import time

import pytest

from machtrace.cpython.layout import layout_of
from machtrace.cpython.objects import LineTable
from machtrace.cpython.runtime import find_runtime
from machtrace.cpython.threads import read_threads
from machtrace.errors import FormatError, MachtraceError, TargetError
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import MemoryRegion
from tests.support.writers.python_memory import PythonMemory

VERSIONS = [(3, 11), (3, 12), (3, 13), (3, 14)]
LINES = bytes([0x80 | 13 << 3 | 7, 2] * 8)
"""Eight entries of eight instructions each, every one a line further than the one before."""


def read(memory):
    """Read Python functions from synthetic memory."""
    return read_threads(memory.region(), memory.runtime, memory.layout)


def names(functions):
    """Return names, lines and files of each run, by thread."""
    return {
        thread: [[(one.name, one.location.path, one.location.line) for one in run] for run in runs]
        for thread, runs in functions.functions.items()
    }


@pytest.fixture(params=VERSIONS, ids=str)
def memory(request):
    """Synthetic memory of each version."""
    return PythonMemory(request.param)


def test_runs_have_their_functions(memory):
    """Innermost first, with the line of each one's current instruction."""
    leaf = memory.code("leaf", "/a/leaf.py", 10, LINES)
    outer = memory.code("Klass.größe", "/a/函数.py", 100, LINES)
    first = memory.interpreter()
    runs = [[memory.frame(leaf, 9), memory.frame(outer, 0)], [memory.frame(outer, 63)]]
    memory.thread(first, 41, runs)
    memory.thread(first, 42, [[memory.frame(leaf, -1)]] if memory.layout.version < (3, 13) else [])
    memory.thread(first, 0, [[memory.frame(leaf, 1)]])
    functions = read(memory)

    assert functions.errors == ()
    named = names(functions)
    assert named[41] == [
        [("leaf", "/a/leaf.py", 12), ("Klass.größe", "/a/函数.py", 101)],
        [("Klass.größe", "/a/函数.py", 108)],
    ]
    assert named.get(42, []) in ([], [[("leaf", "/a/leaf.py", 10)]])
    assert 0 not in named


def test_a_run_without_functions_is_returned(memory):
    """Its function has just returned: a destructor may run in a nested run."""
    if memory.layout.version == (3, 11):
        pytest.skip("its runs begin with a function")
    leaf = memory.code("leaf", "leaf.py", 1, LINES)
    runs = [[memory.frame(leaf, 0)], [], [memory.frame(leaf, 8)]]
    memory.thread(memory.interpreter(), 7, runs)

    assert [len(run) for run in read(memory).functions[7]] == [1, 0, 1]


def test_runs_of_two_interpreters_in_one_thread_are_in_stack_order(memory):
    """Here the order of creation is the opposite."""
    code = [memory.code(name, "x.py", 1, LINES) for name in ("inner", "outer")]
    memory.thread(memory.interpreter(), 7, [[memory.frame(code[0], 0)]])
    memory.thread(memory.interpreter(), 7, [[memory.frame(code[1], 0)]])
    found = read(memory)

    assert [[one.name for one in run] for run in found.functions[7]] == [["inner"], ["outer"]]


def test_a_malformed_thread_does_not_affect_the_others(memory):
    leaf = memory.code("leaf", "leaf.py", 1, LINES)
    first = memory.interpreter()
    outside = memory.frame(leaf, 200)
    no_code = memory.frame(memory.text("no code"), 0)
    for thread, frame in ((1, outside), (2, no_code), (3, memory.frame(leaf, 0))):
        memory.thread(first, thread, [[memory.frame(leaf, 0)], [frame]])
    found = read(memory)

    assert list(found.functions) == [3]
    assert {1, 2} == {thread for thread, _ in found.errors}


def test_cyclic_chains_end_with_an_error(memory):
    """Lists of frames, threads and interpreters."""
    leaf = memory.code("leaf", "leaf.py", 1, LINES)
    first = memory.interpreter()
    frames = [memory.frame(leaf, 0), memory.frame(leaf, 0)]
    state = memory.thread(first, 1, [[memory.frame(leaf, 0)], frames])
    memory.point(frames[1] + memory.layout.frame_previous, frames[0])
    if memory.layout.frame_is_entry is not None:
        memory.write(frames[1] + memory.layout.frame_is_entry, b"\0")
    result = read(memory)
    assert [thread for thread, _ in result.errors] == [1]

    memory.point(state + memory.layout.thread_next, state)
    memory.point(first + memory.layout.interpreter_next, first)
    result = read(memory)
    assert None in [thread for thread, _ in result.errors]


@pytest.mark.parametrize("version", [(3, 11), (3, 12)], ids=str)
def test_a_run_that_just_begins_shows_no_stale_function(version):
    """Its C frame is linked, but still has its previous contents."""
    memory = PythonMemory(version)
    code = [memory.code(name, "x.py", 1, LINES) for name in ("stale", "caller")]
    first = memory.interpreter()
    frames = [memory.frame(item, 0) for item in code]
    state = memory.thread(first, 7, [[frames[0]], [frames[1]]])
    c_frame = memory.pointer(state + memory.layout.thread_frame)
    other = memory.thread(first, 8, [[memory.frame(code[0], 0)], [memory.frame(code[0], 0)]])
    stale = memory.pointer(
        memory.pointer(other + memory.layout.thread_frame) + memory.layout.c_frame_current
    )
    memory.point(c_frame + memory.layout.c_frame_current, stale)

    assert [[item.name for item in run] for run in read(memory).functions[7]] == [["caller"]]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/usr/bin/python2.7", "unsupported CPython 2.7"),
        ("/usr/lib/libpython3.6m.so.1.0", "unsupported CPython 3.6"),
        ("/usr/bin/python3.12", "no CPython found"),  # it has the runtime, but hidden
        ("/usr/bin/bpython", "no CPython found"),
    ],
)
def test_versions_before_the_runtime_are_known_by_their_images(path, message):
    image = BinaryImage(
        path=path,
        uuid=None,
        arch=Arch.X86_64,
        format=ImageFormat.ELF,
        load_address=Avma(0x1000),
        header_svma=Svma(0),
        size=0x1000,
    )
    nothing = MemoryRegion(Avma(0), b"")
    with pytest.raises((FormatError, TargetError), match=re.escape(message)) as refused:
        find_runtime([image], nothing, lambda _image: None, path)
    assert refused.value.remedy.startswith("omit --python (in Python: python=True)")


def test_unknown_versions_are_reported():
    """As are free-threaded builds, and invalid offsets."""
    with pytest.raises(FormatError, match=r"3\.10"):
        layout_of(bytes(1024), 0x030A0DF0, "x")
    with pytest.raises(FormatError, match="unknown version"):
        layout_of(bytes(1024), None, "x")
    with pytest.raises(FormatError, match=r"CPython 3\.10;"):
        layout_of(bytes(1024), None, "/usr/lib/libpython3.10.so.1.0")
    head = bytearray(PythonMemory((3, 14)).data[16 : 16 + 1024])
    later, threaded, far = head[:], head[:], head[:]
    later[8:16] = (0x030F00F0).to_bytes(8, "little")
    threaded[16] = 1
    far[40:48] = (1 << 40).to_bytes(8, "little")
    for bad, word in ((later, r"3\.15"), (threaded, "free-threaded"), (far, "exceed")):
        with pytest.raises(FormatError, match=word) as caught:
            layout_of(bytes(bad), None, "x")
        assert caught.value.remedy


def test_lines_equal_those_of_co_lines():
    """For all of this module's functions."""
    checked = 0
    for function in (value for value in globals().values() if callable(value)):
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
def test_an_invalid_line_table_gives_a_line_or_none(table):
    """In bounded time."""
    for instruction in (-1, 0, 5, 1 << 40):
        found = LineTable(table, 1).line(instruction)
        assert found is None or isinstance(found, int)


def test_hostile_memory_gives_a_value(memory):
    """In bounded time, and never an exception."""
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
