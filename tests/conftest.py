"""Settings of all tests, and the markers of their requirements.

A marker declares a requirement beside Python, so that ``make check`` can deselect the test:

``live``
    The test captures a running process, another or its own. These tests run sequentially, without
    parallel tests.
``emulated``
    The test runs code in the emulator, unicorn.
``peer``
    The test runs another program to its end: a compiler, a debugger, the ``machtrace`` command.

``FOLDERS`` marks all tests of a folder; other modules and tests have their own markers. A test that
starts a program or the emulator without a marker fails, and the failure names the marker.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Arrow's allocator has a thread that blocks all signals, which captures of this process would need.
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")

TESTS = Path(__file__).parent
FOLDERS = {
    "emulated": ["emulated"],
    "emulated/darwin": ["peer"],
    "fuzz": ["peer"],
    "lab": ["emulated", "peer"],
    "live": ["live"],
}
"""The markers of all tests of a folder."""
STARTS = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
)
"""Audit events that start another process."""
MAX_WORKERS = 8
"""Maximum number of workers: each collects all tests, so that more gain little."""

settings.register_profile(
    "suite",
    deadline=None,  # a first example imports or compiles, and a busy machine is slow
    derandomize=True,  # the same examples each time; `make fuzz` tries others
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


class Guard:
    """An audit hook that fails tests which start programs without the marker for it."""

    def __init__(self) -> None:
        self.test: pytest.Item | None = None
        """The running test."""
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
            # Not an Exception, which the tested code could catch.
            required = " or ".join(sorted(markers))
            pytest.fail(
                f"this test {action}; mark it {required}: see tests/conftest.py", pytrace=False
            )


GUARD = Guard()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Set the guard's running test, for its fixtures, too."""
    GUARD.test = item
    try:
        return (yield)
    finally:
        GUARD.test = None


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the folders in ``FOLDERS``."""
    for folder, markers in FOLDERS.items():
        start = f"{TESTS / folder}{os.sep}"
        for item in items:
            if str(item.path).startswith(start):
                for marker in markers:
                    item.add_marker(marker)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of processors that this process may use, up to the maximum."""
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has it
        usable = os.cpu_count() or 1
    return min(usable, MAX_WORKERS)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Cache indices of debug information in a temporary folder instead of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MACHTRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _interruptible():
    """SIGINT and SIGQUIT act here and in children; in background jobs of a shell they do not."""
    actions = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL}
    before = {number: signal.signal(number, action) for number, action in actions.items()}
    yield
    for number, action in before.items():
        signal.signal(number, action)
