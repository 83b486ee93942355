"""Errors have facts, and retain them when copied or sent to another process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest

from machtrace import errors

EXAMPLES = (
    errors.MachtraceError("words"),
    errors.MachtraceError("words", remedy="do this"),
    errors.TargetError("words"),
    errors.TargetSpecError("words"),
    errors.TargetAccessError("refused", pid=7, errno=13, remedy="ask"),
    errors.TargetGoneError("gone", pid=7),
    errors.ThreadGoneError("gone", thread=9),
    errors.ConnectionLostError("silence"),
    errors.RemoteProtocolError("odd", request="?", reply="E01"),
    errors.DeviceError("locked", udid="00008110-001C", remedy="unlock it"),
    errors.MemoryReadError(0x1000, 8),
    errors.FormatError("odd", source="file", offset=4, remedy="look"),
    errors.MachOError("odd", source="file", offset=4),
    errors.ElfError("odd", source="file", offset=4),
    errors.DwarfError("odd", source="file", offset=4),
    errors.CoreFileError("odd", source="file", offset=4),
    errors.DebugInformationError("/path", "its reader died"),
    errors.FileAccessError("/path", "no such file"),
    errors.MissingExtraError("emulation", extra="emulator"),
    errors.AmbiguousImageError("App", ["/one/App (arm64)", "/two/App (arm64)"]),
    errors.ArgumentError("threads is 0", remedy="give 1 or more"),
    errors.MemoryLimitError("the query needs more"),
    errors.RulesError("rules.toml: no rules"),
)


def _kinds(kind: type[errors.MachtraceError]) -> Iterator[type[errors.MachtraceError]]:
    yield kind
    for narrower in kind.__subclasses__():
        if narrower.__module__ == errors.__name__:
            yield from _kinds(narrower)


def test_each_kind_has_an_example():
    """A new class cannot be forgotten in the next test."""
    assert {type(error) for error in EXAMPLES} == set(_kinds(errors.MachtraceError))


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))],  # noqa: S301
)
def test_errors_survive_copying_and_pickling(
    error: errors.MachtraceError, again: Callable[[errors.MachtraceError], errors.MachtraceError]
):
    """With message, facts and remedy."""
    error.add_note("seen while testing")
    copied = again(error)
    assert type(copied) is type(error)
    assert str(copied) == str(error)
    assert copied.args == error.args
    assert copied.remedy == error.remedy
    assert vars(copied) == vars(error)
    if isinstance(error, OSError):
        assert isinstance(copied, OSError)
        assert copied.errno == error.errno
