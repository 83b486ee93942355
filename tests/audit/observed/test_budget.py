"""Calls whose stacks were not taken, for the budget of their site: nobody is named their owner."""

from pathlib import Path

from machtrace.audit.observed.recording import recording_of
from machtrace.audit.rules import load_rules
from machtrace.audit.trail.calls import CallFlag
from machtrace.audit.trail.stacks import NO_IMAGE, OUTER_MISSING
from machtrace.reports.spool.spool import Spool
from tests.support.writers import spool as writer

RULES = 'schema = 1\nname = "test"\n[[rules]]\nwatch = "open"\ncategory = "Contacts"\n'


def test_the_callers_of_a_call_site_are_missing(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES, encoding="utf-8")
    mark = writer.node(0, 2)
    site = writer.node(mark, writer.START + 0x1A0)
    chain = writer.varints(0, 2, 0, 1, 0, 2, 0, 0x1A0 << 1 | 1, 1)
    log = [*writer.sample_log()[:6], (writer.NODES, chain)]
    data = writer.spool(log, cells=[(0, site, 1_000), (0, writer.MAIN, 2)])
    trail = recording_of([Spool.parse(data, "app.spool")], load_rules(str(rules))).trail
    is_missing = trail.calls.has(CallFlag.OUTER_MISSING)
    assert dict(zip(trail.calls.calls.tolist(), is_missing.tolist(), strict=True)) == {
        1_000: True,
        2: False,
    }
    (stack,) = trail.calls.stack[is_missing].tolist()
    parent = int(trail.stacks.parent[stack])
    assert (trail.stacks.image[parent], trail.stacks.offset[parent]) == (NO_IMAGE, OUTER_MISSING)
