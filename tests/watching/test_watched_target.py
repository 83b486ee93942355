"""Targets that can be watched on each system."""

import pytest

from machtrace.errors import TargetSpecError
from machtrace.watching import target


def test_a_process_id_on_a_mac_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "this_system", lambda: target.System.DARWIN)
    with pytest.raises(TargetSpecError, match="macOS") as caught:
        target.open_watched(1)
    assert "debugserver" in caught.value.remedy
