"""The two readers of spools: the product's, and the tests' own."""

from __future__ import annotations

from pathlib import Path

from machtrace.reports.spool.spool import Spool
from tests.agent import spool_format


def check_readers_agree(path: Path) -> Spool:
    """Compare the product's reading with that of the tests, and return it."""
    expected, actual = spool_format.read(path), Spool.read(path)
    assert list(actual.problems) == expected.incomplete
    assert {(rule, stack): calls for rule, _, stack, calls in actual.sums().tolist()} == dict(
        expected.sums()
    )
    timed = [event for event in expected.events if event.number >= expected.first_event]
    for name in ("time", "stack", "thread", "rule", "depth", "flags", "calls"):
        assert actual.events[name].tolist() == [getattr(event, name) for event in timed]
    assert actual.calls.tolist() == expected.calls
    assert actual.losses._asdict() == expected.losses
    nodes = spool_format.Nodes(expected)
    assert actual.tree.rows.keys() - {0} == nodes.parents.keys()
    for stack in {stack for _, stack in expected.sums()}:
        addresses = [
            frame.offset + (frame.image.start if frame.image else 0)
            for frame in actual.stack(stack)
        ]
        assert addresses == [address for address in nodes.stack(stack) if address >= 65536]
    assert {rule.symbol: rule.state for rule in actual.rules} == {
        symbol: rule.state for symbol, rule in spool_format.rules(expected).items()
    }
    return actual
