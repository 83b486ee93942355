"""Targets that can be watched on each system."""

import pytest

from machtrace.watching import target


@pytest.mark.parametrize(
    ("spec", "system", "is_traced"),
    [
        (1, target.System.LINUX, True),
        ("1", target.System.LINUX, True),
        ("gdb://host:1", target.System.LINUX, False),
        (1, target.System.DARWIN, False),
    ],
)
def test_processes_of_linux_are_traced_for_crashes(
    spec: int | str, system: target.System, is_traced: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "this_system", lambda: system)
    assert target.can_trace(spec) is is_traced
