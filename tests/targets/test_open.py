"""Valid and invalid target specs."""

from __future__ import annotations

import pytest

import machtrace as mt
from machtrace.errors import TargetSpecError


@pytest.mark.parametrize(
    "nothing", [None, "", 3.5, b"1", object()], ids=["None", "empty", "float", "bytes", "object"]
)
@pytest.mark.parametrize("entry", [mt.open_target, mt.snapshot, mt.backtraces])
def test_what_names_no_target_is_refused_alike(entry, nothing):
    """Every entry point raises an error with a remedy."""
    with pytest.raises(TargetSpecError, match="target") as refused:
        entry(nothing)
    assert "process id" in refused.value.remedy
