"""The iOS-like example: each call with its library and the state of consent."""

from __future__ import annotations

from pathlib import Path

import pytest

from machtrace.model.arch import Arch
from machtrace.reports.spool.spool import Spool
from tests.agent import spool_format
from tests.agent.ios_like import run

pytestmark = [pytest.mark.peer, pytest.mark.emulated]
_STATE = 512
"""A rule's number is below; the state is above."""
ABSENT, GIVEN, BACKGROUND = 1, 2, 4
LOCATION, PASTEBOARD = "+[Location update:]", "+[Pasteboard read:]"
IDENTIFIER = "+[Identifier advertising:]"
CALLS = [
    (PASTEBOARD, "app", ABSENT),
    (IDENTIFIER, "libanalytics.dylib", ABSENT),
    (PASTEBOARD, "libanalytics.dylib", ABSENT),
    ("-[Agreement accept]", "app", ABSENT),
    (LOCATION, "app", GIVEN),
    (IDENTIFIER, "libanalytics.dylib", GIVEN),
    (PASTEBOARD, "libanalytics.dylib", GIVEN),
    (IDENTIFIER, "libadvertising.dylib", GIVEN),
    (LOCATION, "libadvertising.dylib", GIVEN),
    (LOCATION, "app", GIVEN | BACKGROUND),
]


@pytest.mark.parametrize("arch", [Arch.ARM64, Arch.ARM64E])
def test_every_call_has_its_library_and_consent(tmp_path: Path, arch: Arch) -> None:
    path = tmp_path / "app.spool"
    process = run(tmp_path / "images", path, arch)
    spool = spool_format.read(path)
    assert not any(spool.losses.values())
    nodes = spool_format.Nodes(spool)
    symbols = {rule.number: rule.symbol for rule in spool_format.rules(spool).values()}
    calls = [
        (
            symbols[event.rule % _STATE],
            Path(nodes.images[nodes.frames[event.stack][0]].path).name,
            event.rule // _STATE,
        )
        for event in spool.events
    ]
    assert calls == CALLS
    stacks = [tuple(filter(None, nodes.stack(event.stack))) for event in spool.events]
    true = [(call.symbol, call.stack) for call in process.calls]
    assert [(symbol, stack) for (symbol, _, _), stack in zip(CALLS, stacks, strict=True)] == true
    parsed = Spool.read(path)
    assert [int(event["state"]) for event in parsed.events] == [state for _, _, state in CALLS]
