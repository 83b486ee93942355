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
def test_a_pickled_snapshot_gives_the_same_stacks_in_another_process(core, copied):
    """The bytes are pickled, not the mapping."""
    snapshot = machtrace.snapshot(core)
    walked = machtrace.unwind(snapshot)
    again = copied(snapshot)
    assert [one.addresses for one in machtrace.unwind(again)] == [one.addresses for one in walked]


@pytest.mark.emulated
@pytest.mark.parametrize("copied", COPIES, ids=["copy", "pickle"])
def test_backtraces_and_explanations_return_from_a_process_pool(core, copied):
    for walked in machtrace.unwind(machtrace.snapshot(core)):
        again = copied(walked)
        assert again.addresses == walked.addresses
        assert machtrace.explain(again) == machtrace.explain(walked)
        assert copied(machtrace.explain(walked)) == machtrace.explain(walked)


def test_a_path_with_nul_is_an_error_in_another_process():
    with pytest.raises(FileAccessError, match="null byte"):
        machtrace.snapshot("a\0b")
