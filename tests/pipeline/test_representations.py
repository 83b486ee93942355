"""The representations of captures in logs and debuggers: sizes and addresses, no contents."""

import os
import re
import threading

import pytest

import machtrace as mt
from machtrace.errors import TargetSpecError
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet


def test_a_snapshot_is_a_line_without_memory_contents(monkeypatch):
    """Stacks hold arguments, and the main thread's ends with the environment."""
    # On a busy machine the thread may wait long for its turn to answer.
    monkeypatch.setattr("machtrace.targets.inprocess.copier.ANSWER_LIMIT_NS", 20_000_000_000)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        snapshot = mt.snapshot("self")
    finally:
        done.set()
        thread.join()
    shown = repr(snapshot)
    assert f" {os.getpid()} (" in shown
    assert re.search(r": \d+ threads?, \d+ images", shown)
    assert "image" in shown
    assert len(shown) < 300
    assert snapshot.threads
    for thread in snapshot.threads:
        assert len(repr(thread)) < 2000


def test_bytes_are_counted():
    """A region shows its start and size."""
    region = MemoryRegion(Avma(0x16FDFC000), b"\0" * 3560)
    assert repr(region) == "MemoryRegion(start=0x16fdfc000, 3560 bytes)"


def test_registers_have_names_and_are_hexadecimal():
    """They are printed as in debuggers."""
    registers = RegisterSet.of(Arch.ARM64, pc=0x1000, sp=0x16FDFC000, lr=0x2000)
    assert repr(registers) == "RegisterSet(arm64: pc=0x1000 lr=0x2000 sp=0x16fdfc000)"


@pytest.mark.parametrize(
    ("given", "expected"),
    [([], "an object of list"), (b"x" * 500, "…"), (1.5, "1.5"), (-1, "-1")],
)
def test_an_invalid_thread_is_shown_in_few_words(given, expected):
    with pytest.raises(TargetSpecError) as caught:
        mt.backtrace(given)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 200
