"""The binding of ``_darwin_task``, built for this machine over a core with fixed answers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.peer

NATIVE = Path(__file__).parents[3] / "native"
HERE = Path(__file__).parent
PORT = 0xFFFFFFF3
TOGETHER, ONE_BY_ONE = True, False


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The extension."""
    compiler = shutil.which("cc")
    headers = Path(sysconfig.get_paths()["include"])
    if compiler is None or not (headers / "Python.h").exists() or sys.platform == "darwin":
        pytest.skip("takes a C compiler and Python's headers, and no Mach of the system's own")
    output = tmp_path_factory.mktemp("binding") / "_darwin_task.so"
    command = [compiler, "-shared", "-fPIC", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]
    command += ["-DPy_LIMITED_API=0x030b0000", f"-I{headers}", f"-I{HERE / 'include'}"]
    command += [f"-I{NATIVE}", str(NATIVE / "darwin_task/module.c"), str(HERE / "binding_core.c")]
    done = subprocess.run(
        [*command, "-o", str(output)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loader = ExtensionFileLoader("_darwin_task", str(output))
    spec = spec_from_loader("_darwin_task", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_process_facts_are_returned_without_loss(task: ModuleType) -> None:
    """No sign is lost, and no byte."""
    assert task.process(8) == (3, None)
    users = (0xFFFFFFFE, 501, 502)
    path = b"/Applications/gr\xc3\xb6\xff"
    numbers = (0x100000C, 0x80000002 - (1 << 32), 0x84000000)
    assert task.process(7) == (0, (1, users, 0x82000010, 2, b"a name", path, *numbers))


def test_ports_and_missing_values_are_returned(task: ModuleType) -> None:
    """A port can be any 32-bit number."""
    assert task.open_task(7) == (PORT, 1, 0, 0, 0)
    assert task.open_task(8) == (0, 0, 1, 5, 0x10000003)
    assert task.rights() == (501, 0xFFFFFFFF, True, False, 47, 0x1000007)
    assert task.close_task(PORT) is None
    assert task.rights()[:2] == (0, -1)


def test_memory_is_read_up_to_the_first_unreadable_byte(task: ModuleType) -> None:
    """Many ranges at once, short ones and long."""
    found = task.read_memory(PORT, [(0x1001, 3), (0x10, 8), (0x2002, 1 << 18), (0x3003, 0)])
    assert found == [b"\x01" * 3, b"\x10" * 4, b"\x02" * (1 << 18), b""]
    assert task.read_memory(PORT, []) == []
    assert task.find_region(PORT, 0x1234) == (0, 0x1000, (1 << 64) - 1 - 0x1000, 3, 30)
    assert task.find_region(PORT, 0)[0] == 1
    assert task.dyld_info(PORT) == (0, 0xFFFFFFFF00000000, 360, 1)
    assert task.dyld_info(1)[0] == 0x10000003
    assert task.label_offset() == (6, 0xFFF8)


@pytest.mark.parametrize(
    "ranges", [[(1, 1 << 31)], [(1,)], [1], [None], [(1, 2, 3)], ["ab"], [(1, "x")], [(1, 1), ()]]
)
def test_invalid_ranges_are_refused(task: ModuleType, ranges: list[object]) -> None:
    """Everything read before them is released."""
    with pytest.raises((TypeError, ValueError)):
        task.read_memory(PORT, ranges)


def test_threads_are_listed(task: ModuleType) -> None:
    result, rows = task.list_threads(PORT)
    assert (result, len(rows)) == (0, 16384)
    assert rows[0] == ((1 << 64) - 2, 0xE0, 0x100, 3, 1, b"name", (1 << 64) - 1)
    assert task.list_threads(1) == (37, [])


@pytest.mark.parametrize("together", [False, True])
def test_threads_are_copied(task: ModuleType, *, together: bool) -> None:
    """Each has its own part of the buffer."""
    result, left, rows = task.copy_threads(PORT, (1, 99, 2), 1 << 20, (1 << 47) - 1, together)
    assert (result, left) == (0, 3)
    stopped = 2 if together else 3
    last = (1 << 64) - 1
    assert rows == [
        _copied(1, stopped, last),
        (99, 1, 37, 0, b"", (), 1, stopped, 4, 0),
        _copied(2, stopped, last),
    ]


def _copied(number: int, stopped: int, queue: int) -> tuple[object, ...]:
    stack = ((1 << 47) - 1, bytes([number]) * 64)
    return (number, 0, 0, 0, bytes([number]) * 272, (stack,), 1, stopped, 4, queue)


def test_a_capture_takes_no_threads_no_stacks_or_long_stacks(task: ModuleType) -> None:
    """And a port of another task."""
    assert task.copy_threads(PORT, (), 1, 1, TOGETHER) == (0, 0, [])
    assert task.copy_threads(PORT, (1,), 0, 1, TOGETHER)[2][0][5] == ((1, b""),)
    assert len(task.copy_threads(PORT, (1,), (1 << 64) - 1, 1, TOGETHER)[2]) == 1
    assert task.copy_threads(1, (1,), 1, 1, ONE_BY_ONE)[0] == -308
    for ids in [(-1,), ("a",), (1 << 64,), [1]]:
        with pytest.raises((TypeError, OverflowError)):
            task.copy_threads(PORT, ids, 1, 1, ONE_BY_ONE)


def test_no_references_leak(task: ModuleType) -> None:
    ranges = [(0x1001, 3)] * 4
    thread_ids = (1234567, 2345678)
    before = [sys.getrefcount(value) for value in (*ranges[:1], *thread_ids, None)]
    for _ in range(100):
        task.read_memory(PORT, ranges)
        task.copy_threads(PORT, thread_ids, 64, 1, TOGETHER)
        task.process(8)
        with pytest.raises(TypeError):
            task.read_memory(PORT, [*ranges, None])
    after = [sys.getrefcount(value) for value in (*ranges[:1], *thread_ids, None)]
    assert all(abs(value - other) < 50 for value, other in zip(before, after, strict=True))
