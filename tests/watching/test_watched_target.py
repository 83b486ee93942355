"""Targets that can be watched on each system."""

import pytest

from machtrace.errors import TargetSpecError
from machtrace.watching import target
from machtrace.watching.thresholds import WatchOptions


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


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("frida://local/1", WatchOptions(crash=True)),
        ("frida://local/1", WatchOptions(hang_ns=None, deadlocks=True)),
        ("gdb://host:1", WatchOptions(hang_ns=None, deadlocks=True, crash=False)),
    ],
)
def test_what_cannot_be_watched_of_a_target_is_an_error(spec: str, options: WatchOptions) -> None:
    with pytest.raises(TargetSpecError, match="are not watched"):
        target.open_watched(spec, options)
