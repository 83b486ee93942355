"""Snapshots and stacks of cores in other processes, and as deep copies."""

from __future__ import annotations

import copy
import pickle

import pytest

import machtrace
from machtrace.errors import FileAccessError

COPIES = [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]  # noqa: S301


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """A saved core, which is mapped and not read when it is opened."""
    path = tmp_path_factory.mktemp("pickling") / "demo.core"
    machtrace.save_snapshot(machtrace.snapshot("emulated:demo"), path)
    return path


@pytest.mark.emulated
@pytest.mark.parametrize("copied", COPIES, ids=["copy", "pickle"])
def test_snapshot_of_a_core_gives_the_same_stacks_elsewhere(core, copied):
    """The bytes are pickled, not the mapping."""
    snapshot = machtrace.snapshot(core)
    walked = machtrace.unwind(snapshot)
    again = copied(snapshot)
    assert [one.addresses for one in machtrace.unwind(again)] == [one.addresses for one in walked]


@pytest.mark.emulated
@pytest.mark.parametrize("copied", COPIES, ids=["copy", "pickle"])
def test_backtraces_and_explanations_of_a_core(core, copied):
    """The result of a pool of processes."""
    for walked in machtrace.unwind(machtrace.snapshot(core)):
        again = copied(walked)
        assert again.addresses == walked.addresses
        assert machtrace.explain(again) == machtrace.explain(walked)
        assert copied(machtrace.explain(walked)) == machtrace.explain(walked)


def test_path_that_no_file_can_have():
    """It has a NUL, which no system takes."""
    with pytest.raises(FileAccessError, match="null byte"):
        machtrace.snapshot("a\0b")
