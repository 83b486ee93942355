"""The calling thread's own stack by ``call_stack_symbols``, and its cache."""

from __future__ import annotations

import _ctypes
import ctypes
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import machtrace as mt

pytest.importorskip("machtrace._native._self", reason="the extension is not built")

LINE = re.compile(r"(\d+) +(\S+) +0x([0-9a-f]{16}) (\S+) \+ (\d+)")


def nested(depth: int, innermost: Callable[[], object]) -> object:
    """Calls through C at every level, so that each is a frame of the machine."""
    if not depth:
        return innermost()
    return next(map(lambda _: nested(depth - 1, innermost), [0]))  # noqa: C417 - C is meant


def test_lines_are_those_of_callstacksymbols() -> None:
    """Number, image, address, function and the distance from its start."""
    lines = mt.call_stack_symbols()
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found)
    assert [int(one[1]) for one in found if one] == list(range(len(lines)))
    assert "_PyEval_EvalFrameDefault" in " ".join(lines)


def test_the_cache_and_the_exact_walk_agree() -> None:
    """The second answer is the first, and both name what the snapshot's way names."""

    def look() -> None:
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
    """Sums of addresses collide where frames repeat or change places; this must not."""
    seen: set[tuple[str, ...]] = set()

    def by_map(inner: Callable[[], object]) -> object:
        return next(map(lambda _: inner(), [0]))  # noqa: C417 - C is meant

    def by_sort(inner: Callable[[], object]) -> object:
        return sorted([0], key=lambda _: inner())

    def look() -> None:
        lines = [mt.call_stack_symbols() for _ in range(2)][-1]
        functions = tuple(LINE.fullmatch(line)[4] for line in lines)  # type: ignore[index]
        assert functions not in seen
        seen.add(functions)

    for outer, inner in ((by_map, by_sort), (by_sort, by_map), (by_map, by_map)):
        outer(lambda inner=inner: inner(look))
    assert len(seen) == 3


def test_a_deep_stack_keeps_both_ends() -> None:
    """The frames that are left out are counted, and the others keep their numbers."""

    def look() -> None:
        whole, cut = mt.call_stack_symbols(), mt.call_stack_symbols(20)
        assert len(cut) == 21
        gap = next(line for line in cut if line.startswith("..."))
        assert gap == f"... {len(whole) - 20} frames not shown"
        assert cut[-5:] == whole[-5:]
        assert cut[5].split()[3:] == whole[5].split()[3:]

    nested(12, look)


def test_the_programs_own_frames_keep_their_numbers() -> None:
    """What is left out shows as numbers that are missing."""
    whole, own = mt.call_stack_symbols(), mt.call_stack_symbols(app_only=True)
    assert 0 < len(own) < len(whole)
    assert not any(line.split()[1].startswith("libc.so") for line in own)
    numbered = {line.split()[0]: line.split()[1] for line in whole}
    assert all(numbered[line.split()[0]] == line.split()[1] for line in own)


def test_many_threads_at_once() -> None:
    """Each gets its own stack, from one cache."""

    def look(depth: int) -> int:
        counts: list[int] = []
        nested(depth, lambda: counts.append(len(mt.call_stack_symbols())))
        return counts[0]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(look, [1, 2, 3, 4] * 50))
    assert len(set(found)) == 4
    assert found == found[:4] * 50


def test_an_image_in_another_ones_place(tmp_path: Path) -> None:
    """What was remembered of an image is forgotten when it is unloaded."""
    callback = ctypes.CFUNCTYPE(None)
    for name in ("formerly", "nowadays"):
        source = tmp_path / f"{name}.c"
        source.write_text(f'void {name}(void (*call)(void)) {{ call(); __asm__(""); }}\n')
        library = tmp_path / f"lib{name}.so"
        command = ["cc", "-shared", "-fPIC", "-O1", str(source), "-o", str(library)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no C compiler")
    for name in ("formerly", "nowadays", "formerly"):
        loaded = ctypes.CDLL(str(tmp_path / f"lib{name}.so"))
        found: list[str] = []
        for _ in range(3):
            getattr(loaded, name)(callback(lambda to=found: to.extend(mt.call_stack_symbols())))
        named = [line for line in found if f" {name} + " in line]
        assert len(named) == 3
        assert all(line.split()[1] == f"lib{name}.so" for line in named)
        _ctypes.dlclose(loaded._handle)  # noqa: SLF001 - ctypes never unloads by itself
