"""Incidents that a watcher remembers."""

from dataclasses import replace

from machtrace.model.incident.facts import TimeRange
from machtrace.watching.incidents import Incidents
from tests.support.reports.incidents import HANG


def test_old_incidents_have_their_facts_and_no_stacks():
    incidents = Incidents()
    whole = HANG
    assert whole.stacks
    for number in range(100):
        ended = replace(whole, id=str(number), ended=TimeRange(1, 2))
        incidents.add(ended)
        incidents.add(ended)
    incidents.add(replace(whole, id="open", ended=None))
    have_stacks = [bool(each.stacks) for each in incidents.all]
    assert have_stacks == [False] * 36 + [True] * 65
    assert [each.id for each in incidents.all] == [*map(str, range(100)), "open"]
    assert incidents.get("0").culprit == whole.culprit
    assert incidents.get("none") is None
