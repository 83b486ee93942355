"""The calling thread's own stack by ``call_stack_symbols``, and its cache."""

from __future__ import annotations

import _ctypes
import ctypes
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

import pytest

import machtrace as mt

pytest.importorskip("machtrace._native._inprocess", reason="the extension is not built")

PROGRAMS = Path(__file__).parent / "programs"
NATIVE = Path(__file__).parents[2] / "native"
CALLBACK = ctypes.CFUNCTYPE(None)
LINE = re.compile(r"(\d+) +(\S+) +0x([0-9a-f]{16}) (\S+) \+ (\d+)")


def nested(depth: int, innermost: Callable[[], object]) -> object:
    """Recurse through C, so that each level has a native frame."""
    if not depth:
        return innermost()
    return next(map(lambda _: nested(depth - 1, innermost), [0]))  # noqa: C417 - C is meant


def compiled(source: Path, output: Path, *options: str) -> Path:
    """Compile a C file; skip the test if there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    command = [compiler, *options, str(source), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot be compiled here: {done.stderr[-200:]}")
    return output


def library(source: Path, output: Path, *options: str) -> ctypes.CDLL:
    """Compile and load a library of one C file."""
    return ctypes.CDLL(str(compiled(source, output, "-shared", "-fPIC", *options)))


def glibc_backtrace() -> list[int]:
    """Return the calling thread's stack by glibc's own unwinder."""
    libc = ctypes.PyDLL(None)
    if not hasattr(libc, "backtrace"):
        pytest.skip("the C library has no backtrace")
    buffer = (ctypes.c_void_p * 512)()
    return [address or 0 for address in buffer[: libc.backtrace(buffer, 512)]]


def common_callers(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the outermost frames that both stacks share."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@pytest.mark.parametrize(
    "options",
    [
        ("-O2", "-fomit-frame-pointer"),
        ("-O2", "-fno-omit-frame-pointer"),
        ("-O0",),
        ("-Os", "-fomit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fexceptions"),
    ],
    ids=" ".join,
)
def test_frames_equal_those_of_glibc_and_of_the_exact_walk(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    """At the same point all three return the same callers, for every compiler's code."""
    frames = library(PROGRAMS / "frames.c", tmp_path / "libframes.so", *options)
    seen: list[tuple[tuple[str, ...], tuple[int, ...], list[int], list[int]]] = []

    def look() -> None:
        """Load, capture and unload until all threads have done so often enough."""
        for _ in range(3):
            exact = [frame.address.address for frame in mt.backtrace(lines=False).frames]
            lines, addresses = mt.call_stack_symbols(), mt.call_stack_return_addresses()
            seen.append((lines, addresses, exact, glibc_backtrace()))

    # In a thread of its own: the main thread's stack depends on how the tests are started.
    thread = threading.Thread(target=lambda: frames.frame_again(CALLBACK(look), 3))
    thread.start()
    thread.join()
    assert len(seen) == 3
    for lines, addresses, exact, glibc in seen:
        functions = [LINE.fullmatch(line)[4] for line in lines]  # type: ignore[index]
        assert [name for name in functions if name.startswith("frame_")] == [
            *("frame_leaf", "frame_with_array", "frame_of_any_size", "frame_realigned"),
            *("frame_with_registers", *["frame_again"] * 4),
        ]
        named = [int(LINE.fullmatch(line)[3], 16) for line in lines]  # type: ignore[index]
        from_leaf = len(lines) - functions.index("frame_leaf")
        for walked in (addresses, exact, glibc):
            assert common_callers(named, walked) >= from_leaf


def test_lines_have_the_format_of_callstacksymbols() -> None:
    """Frame number, image, address, function and the offset from its start."""
    lines = mt.call_stack_symbols()
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found)
    assert [int(one[1]) for one in found if one] == list(range(len(lines)))
    assert "_PyEval_EvalFrameDefault" in " ".join(lines)


def test_the_cache_and_the_exact_walk_agree() -> None:
    """The cached answer equals the first; both have the names of a symbolicated snapshot."""

    def look() -> None:
        """Load, capture and unload until all threads have done so often enough."""
        for _ in range(2):
            first = mt.call_stack_symbols()
            second = mt.call_stack_symbols()
            assert first[3:] == second[3:]
        exact = [frame.address.address for frame in mt.backtrace(lines=False).frames]
        quick = [int(LINE.fullmatch(line)[3], 16) for line in first]  # type: ignore[index]
        common = sum(1 for a, b in zip(exact[::-1], quick[::-1], strict=False) if a == b)
        assert common >= len(quick) - 4
        assert mt.call_stack_return_addresses()[4:] == tuple(quick[4:])

    nested(5, look)


def test_the_same_frames_in_another_order_are_another_stack() -> None:
    """A sum of addresses as the key would collide where frames repeat or change places."""
    seen: set[tuple[str, ...]] = set()

    def by_map(inner: Callable[[], object]) -> object:
        return next(map(lambda _: inner(), [0]))  # noqa: C417 - C is meant

    def by_sort(inner: Callable[[], object]) -> object:
        return sorted([0], key=lambda _: inner())

    def look() -> None:
        """Load, capture and unload until all threads have done so often enough."""
        lines = [mt.call_stack_symbols() for _ in range(2)][-1]
        functions = tuple(LINE.fullmatch(line)[4] for line in lines)  # type: ignore[index]
        assert functions not in seen
        seen.add(functions)

    for outer, inner in ((by_map, by_sort), (by_sort, by_map), (by_map, by_map)):
        outer(lambda inner=inner: inner(look))
    assert len(seen) == 3


@pytest.mark.parametrize("sanitizer", ["", "address,undefined"])
def test_the_cache_distinguishes_order_repetition_and_equal_hashes(
    sanitizer: str, tmp_path: Path
) -> None:
    """The C program also checks that the cache is bounded."""
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []
    sources = [f"-I{NATIVE}", str(NATIVE / "inprocess/core/stack_cache.c"), *flags]
    program = compiled(PROGRAMS / "stack_cache.c", tmp_path / "cache", "-O1", "-g", *sources)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("checks ")
    assert done.stdout.endswith("faults 0\n")


@pytest.mark.parametrize("sanitizer", ["", "address,undefined"])
def test_the_fast_walk_returns_what_the_full_one_returns_or_nothing(
    sanitizer: str, tmp_path: Path
) -> None:
    """With random rules and stacks, valid and damaged."""
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []
    parts = [str(NATIVE / f"walk/{name}.c") for name in ("plain_walk", "rule_table", "stack_walk")]
    sources = [f"-I{NATIVE}", *parts, *flags]
    program = compiled(PROGRAMS / "plain_walk.c", tmp_path / "walk", "-O1", "-g", *sources)
    done = subprocess.run([str(program), "30000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    alike, deep = (int(word) for word in re.findall(r"\d+", done.stdout))
    assert alike > 1000
    assert deep > 100


def test_an_explicit_limit_keeps_the_innermost_frames() -> None:
    """There are as many lines and addresses as the limit, and no mark for the omitted frames."""

    def look() -> None:
        """Load, capture and unload until all threads have done so often enough."""
        whole, cut = mt.call_stack_symbols(), mt.call_stack_symbols(20)
        assert len(whole) > 20
        assert len(cut) == 20
        # The line that calls differs, and so does its address in the innermost frame.
        assert cut[5:] == whole[5:20]
        addresses = mt.call_stack_return_addresses(), mt.call_stack_return_addresses(20)
        assert addresses[0][5:20] == addresses[1][5:]
        assert len(addresses[1]) == 20

    nested(12, look)


def test_the_default_limit_keeps_both_ends_of_a_deep_stack() -> None:
    """The omitted frames are counted, and the others keep their numbers."""

    def look() -> None:
        """Load, capture and unload until all threads have done so often enough."""
        whole, cut = mt.call_stack_symbols(5000), mt.call_stack_symbols()
        assert len(whole) > 512
        assert len(cut) == 513
        assert cut[448] == f"... {len(whole) - 512} frames not shown"
        assert cut[449:] == whole[-64:]
        assert cut[5:448] == whole[5:448]

    nested(120, look)


def test_the_programs_own_frames_keep_their_numbers() -> None:
    """Omitted frames show as missing numbers."""
    whole, own = mt.call_stack_symbols(), mt.call_stack_symbols(app_only=True)
    assert 0 < len(own) < len(whole)
    assert not any(line.split()[1].startswith("libc.so") for line in own)
    numbered = {line.split()[0]: line.split()[1] for line in whole}
    assert all(numbered[line.split()[0]] == line.split()[1] for line in own)


def test_concurrent_threads_get_their_own_stacks_from_one_cache() -> None:

    def look(depth: int) -> int:
        """Load, capture and unload until all threads have done so often enough."""
        counts: list[int] = []
        nested(depth, lambda: counts.append(len(mt.call_stack_symbols())))
        return counts[0]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(look, [1, 2, 3, 4] * 50))
    assert len(set(found)) == 4
    assert found == found[:4] * 50


def passer(folder: Path, name: str) -> Path:
    """Build a library with one function, of this name, that calls its argument."""
    source = folder / f"{name}.c"
    source.write_text(f'void {name}(void (*call)(void)) {{ call(); __asm__(""); }}\n')
    return compiled(source, folder / f"lib{name}.so", "-shared", "-fPIC", "-O1")


def test_a_library_loaded_at_the_address_of_an_unloaded_one_has_its_own_names(
    tmp_path: Path,
) -> None:
    """The cached rules and names of an image are dropped when it is unloaded."""
    libraries = {name: passer(tmp_path, name) for name in ("formerly", "nowadays")}
    for name in ("formerly", "nowadays", "formerly"):
        loaded = ctypes.CDLL(str(libraries[name]))
        found: list[str] = []
        for _ in range(3):
            getattr(loaded, name)(CALLBACK(lambda to=found: to.extend(mt.call_stack_symbols())))
        named = [line for line in found if f" {name} + " in line]
        assert len(named) == 3
        assert all(line.split()[1] == f"lib{name}.so" for line in named)
        _ctypes.dlclose(loaded._handle)  # noqa: SLF001 - ctypes never unloads by itself


def test_images_are_loaded_and_unloaded_while_other_threads_capture(tmp_path: Path) -> None:
    """Threads that share the cache always get their own frames with the right names."""
    names = [f"passes{number}" for number in range(4)]
    libraries = {name: passer(tmp_path, name) for name in names}
    done = threading.Event()

    def look(name: str) -> int:
        """Load, capture and unload until all threads have done so often enough."""
        looks = 0
        while not done.is_set():
            loaded = ctypes.CDLL(str(libraries[name]))
            stacks: list[tuple[str, ...]] = []

            def call(to: list[tuple[str, ...]] = stacks) -> None:
                to.extend(mt.call_stack_symbols() for _ in range(20))

            getattr(loaded, name)(CALLBACK(call))
            for lines in stacks:
                named = [line.split()[1] for line in lines if " passes" in line]
                assert named == [f"lib{name}.so"]
            looks += 1
            _ctypes.dlclose(loaded._handle)  # noqa: SLF001 - ctypes never unloads by itself
            if looks == 5:
                enough.release()
        return looks

    enough = threading.Semaphore(0)
    with ThreadPoolExecutor(len(names)) as pool:
        looking = [pool.submit(look, name) for name in names]
        try:
            assert all(enough.acquire(timeout=30) for _ in names)
        finally:
            done.set()
        assert all(one.result() >= 5 for one in looking)
