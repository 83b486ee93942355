"""A pytest plugin: the native and Python stacks of a test that hangs, and who holds what.

A second process watches, which works while a C function keeps the interpreter lock. It is started
before the first test that has a limit; without one, nothing is.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from types import FrameType
from typing import Any, NamedTuple

import pytest

_NAME = "machtrace-hang"
_ACTIONS = ("print", "fail", "exit")
_PR_SET_PTRACER = 0x59616D61
"""``prctl(2)``; Yama permits a child to trace its parent only if that agrees."""
_SIGNAL = int(signal.SIGRTMIN) + 7 if hasattr(signal, "SIGRTMIN") else int(signal.SIGUSR1)
"""Demands that the running test fails; ``SIGALRM`` is pytest-timeout's."""
_PATIENCE = 10.0
"""Seconds in which the watching process must exit."""


class _Limit(NamedTuple):
    seconds: float
    """0 for none."""
    action: str


def _seconds(text: str, name: str = "--machtrace-hang") -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not isfinite(seconds) or seconds < 0:
        raise pytest.UsageError(
            f"{name}: {text!r} is not a number of seconds: pass 5 or 0.5, or 0 for none"
        )
    return seconds


def _action(text: str, name: str = "--machtrace-hang-action") -> str:
    if text not in _ACTIONS:
        raise pytest.UsageError(f"{name}: {text!r} is unknown: choose one of {', '.join(_ACTIONS)}")
    return text


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, on the command line and in files."""
    group = parser.getgroup("machtrace", "stacks of tests that hang (machtrace)")
    group.addoption(
        "--machtrace-hang",
        metavar="SECONDS",
        help="print the native and Python stacks of all threads when a test takes longer; 0: never",
    )
    group.addoption(
        "--machtrace-hang-action",
        metavar="ACTION",
        help="after printing: 'print' continues (default), 'fail' fails the test, 'exit' ends the "
        "run",
    )
    parser.addini("machtrace_hang", "default of --machtrace-hang", default="0")
    parser.addini("machtrace_hang_action", "default of --machtrace-hang-action", default="print")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and check the options."""
    config.addinivalue_line(
        "markers",
        "machtrace_hang(seconds, action='print'): print all stacks when the test takes longer "
        "(machtrace)",
    )
    _default(config)


def _default(config: pytest.Config) -> _Limit:
    seconds = config.getoption("--machtrace-hang") or config.getini("machtrace_hang")
    action = config.getoption("--machtrace-hang-action") or config.getini("machtrace_hang_action")
    return _Limit(_seconds(str(seconds)), _action(str(action)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Watch the tests if any has a limit."""
    default = _default(session.config)
    # All are checked before the first test runs.
    limits = [_limit_of(item, default) for item in session.items]
    if any(limit.seconds for limit in limits) and not session.config.option.collectonly:
        watch = _Watch(session.config, default)
        session.config.pluginmanager.register(watch, _NAME)
        watch.start()


def _limit_of(item: pytest.Item, default: _Limit) -> _Limit:
    marker = item.get_closest_marker("machtrace_hang")
    if marker is None:
        return default
    values: dict[str, Any] = dict(zip(("seconds", "action"), marker.args, strict=False))
    values |= marker.kwargs
    name = f"machtrace_hang of {item.nodeid}"
    if not values.keys() <= {"seconds", "action"}:
        raise pytest.UsageError(f"{name}: pass seconds and action")
    seconds, action = values.get("seconds"), values.get("action")
    return _Limit(
        default.seconds if seconds is None else _seconds(str(seconds), name),
        default.action if action is None else _action(str(action), name),
    )


class _Watch:
    """Announces tests to the watching process."""

    def __init__(self, config: pytest.Config, default: _Limit) -> None:
        self._config, self._default = config, default
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = os.getpid()
        self._is_starting = True
        self._signal = _SIGNAL
        self._before: Any = None
        """The signal's handler before the first test that may be failed."""
        self._failing: str | None = None
        """The reason of the running test's failure, should the watching process demand one."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Limit the time of a test with its fixtures."""
        limit = _limit_of(item, self._default)
        if not limit.seconds:
            return (yield)
        self._begin({"test": item.nodeid, "seconds": limit.seconds, "action": limit.action})
        with self._signalled(limit):
            try:
                return (yield)
            finally:
                self._send({"test": None})

    def pytest_enter_pdb(self) -> None:
        """Leave a person time to think."""
        self._send({"test": None})

    def pytest_unconfigure(self) -> None:
        """End the watching process."""
        process, self._process = self._process, None
        if process is None or os.getpid() != self._pid:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._before is not None:
            signal.signal(self._signal, self._before)

    @contextmanager
    def _signalled(self, limit: _Limit) -> Iterator[None]:
        """Let the watching process fail the test by a signal."""
        if limit.action == "fail":
            if self._before is None:
                # It stays: a late signal without a handler would end the run.
                self._before = signal.signal(self._signal, self._fail) or signal.SIG_DFL
            self._failing = f"hung for more than {limit.seconds:g} s (--machtrace-hang)"
        try:
            yield
        finally:
            self._failing = None

    def _fail(self, _number: int, _frame: FrameType | None) -> None:
        __tracebackhide__ = True
        reason, self._failing = self._failing, None
        if reason is not None:
            pytest.fail(reason)

    def start(self) -> None:
        """Start the watching process; it gets ready while pytest does."""
        # The test's own output is captured; stacks belong on the terminal, now.
        capture = self._config.pluginmanager.getplugin("capturemanager")
        if capture is None:
            output = os.dup(2)
        else:
            with capture.global_and_fixture_disabled():
                output = os.dup(2)
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
        code = (
            f"import sys; sys.path.append({folder!r}); "
            "from machtrace.watching.watched_tests import main; main()"
        )
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this program itself
                [sys.executable, "-P", "-c", code, str(self._pid), str(self._signal)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        finally:
            os.close(output)
        if sys.platform == "linux":
            import ctypes

            with suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(_PR_SET_PTRACER, self._process.pid, 0, 0, 0)

    def _begin(self, message: dict[str, object]) -> None:
        if self._is_starting and self._process is not None and os.getpid() == self._pid:
            self._is_starting = False
            pipe = self._process.stdout
            if pipe is not None and select.select([pipe], [], [], _PATIENCE)[0]:
                pipe.read(1)
        self._send(message)

    def _send(self, message: dict[str, object]) -> None:
        # A child process that a test forked has the pipe, too.
        pipe = None if self._process is None else self._process.stdin
        if pipe is None or os.getpid() != self._pid:
            return
        with suppress(OSError, ValueError):
            pipe.write(json.dumps({**message, "at_ns": time.monotonic_ns()}).encode() + b"\n")
            pipe.flush()
