"""Settings of all tests, and the needs of each test.

Markers declare what a test needs beside Python, so that ``make check`` can leave it out:

``live``
    A running process is captured: another, or this one. These tests run in sequence, with
    nothing beside them.
``emulated``
    Code runs in the emulator, unicorn.
``peer``
    Another program runs to its end: a compiler, a debugger, ``machtrace`` itself as a command.

A folder in ``FOLDERS`` marks all of its tests; elsewhere a module or a test is marked itself. A
test that starts a program or the emulator without a marker fails, and names the required one.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
FOLDERS = {
    "emulated": ["emulated"],
    "emulated/darwin": ["peer"],
    "fuzz": ["peer"],
    "lab": ["emulated", "peer"],
    "live": ["live"],
}
"""The needs of all tests of a folder."""
STARTS = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
)
"""Audit events of starting another process."""
MOST_WORKERS = 8
"""Each collects all tests for itself, so that more of them gain little."""

settings.register_profile(
    "suite",
    deadline=None,  # a first example imports or compiles, and a busy machine takes its time
    derandomize=True,  # the same examples each time: `make fuzz` is for others
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


class Guard:
    """Lets a test start only the programs that its markers declare."""

    def __init__(self) -> None:
        self.test: pytest.Item | None = None
        """The test that runs."""
        sys.addaudithook(self._audit)
        try:
            import unicorn
        except ImportError:
            return
        make = unicorn.Uc.__init__

        def guarded(emulator: unicorn.Uc, *arguments: object, **named: object) -> None:
            self._demand({"emulated", "live"}, "starts the emulator")
            make(emulator, *arguments, **named)

        unicorn.Uc.__init__ = guarded

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in STARTS:
            self._demand({"live", "peer"}, f"starts a program ({event}: {arguments[:2]})")

    def _demand(self, markers: set[str], action: str) -> None:
        test = self.test
        if test is not None and not any(map(test.get_closest_marker, markers)):
            # No Exception, which could be caught by what is tested.
            wanted = " or ".join(sorted(markers))
            pytest.fail(
                f"this test {action}; mark it {wanted}: see tests/conftest.py", pytrace=False
            )


GUARD = Guard()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Have the guard know which test runs, its fixtures included."""
    GUARD.test = item
    try:
        return (yield)
    finally:
        GUARD.test = None


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the folders that are marked as a whole."""
    for item in items:
        for folder, markers in FOLDERS.items():
            if item.path.is_relative_to(TESTS / folder):
                for marker in markers:
                    item.add_marker(marker)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """As many workers as processors that this process may use: not all need be its."""
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has it
        usable = os.cpu_count() or 1
    return min(usable, MOST_WORKERS)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Indices of debug information are cached in a folder of the tests, not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MACHTRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def interruptible():
    """SIGINT interrupts Python here and in children: what runs in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
