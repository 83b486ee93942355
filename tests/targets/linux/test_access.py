"""The rule that denies tracing a process, from facts in ``/proc``."""

from __future__ import annotations

import pytest

from machtrace.targets.linux.access import AccessFacts, is_transient, refusal

USER = {"Uid": "1000 1000 1000 1000", "CapEff": "0", "CapPrm": "0", "Seccomp": "0"}
ROOT = {"Uid": "0 0 0 0", "CapEff": "1ffffffffff", "CapPrm": "1ffffffffff", "Seccomp": "0"}
WEAK_ROOT = ROOT | {"CapEff": "a80425fb", "CapPrm": "a80425fb"}  # the capabilities of a container


def facts(own=USER, target=USER, **others):
    """Return facts that permit tracing, with ``others`` changed."""
    defaults = {"pid": 7, "tracer_name": None, "is_dumpable": True, "ptrace_scope": None}
    return AccessFacts(own=own, target={"TracerPid": "0", **target}, **(defaults | others))


@pytest.mark.parametrize(
    ("given", "message", "remedy"),
    [
        (
            facts(target=USER | {"TracerPid": "9"}, tracer_name="gdb"),
            "traced already, by process 9 (gdb)",
            "detach process 9 (gdb)",
        ),
        (facts(target=ROOT), "to user 0, not 1000", "root"),
        (
            facts(target=USER | {"Uid": "1000 0 0 0"}),
            "to user 1000/0, not 1000",
            "root",
        ),
        (facts(own=WEAK_ROOT), "lacks CAP_SYS_PTRACE", "--cap-add=SYS_PTRACE"),
        (facts(is_dumpable=False), "not dumpable", "CAP_SYS_PTRACE"),
        (facts(target=USER | {"CapPrm": "2000"}), "capabilities that this one lacks", "root"),
        (facts(ptrace_scope=1), "only its ancestors", "kernel.yama.ptrace_scope=0"),
        (facts(ptrace_scope=2), "only privileged", "root"),
        (facts(ptrace_scope=3), "no process may trace", "boot"),
        (facts(own=ROOT, ptrace_scope=3), "no process may trace", "boot"),
        (facts(own=ROOT | {"Seccomp": "2"}), "seccomp", "seccomp profile"),
        (facts(own=ROOT), "denies tracing process 7", "security module"),
        (facts(), "denies tracing process 7", "container"),
    ],
)
def test_the_first_obstacle_is_reported_with_its_remedy(given, message, remedy):
    said, advice = refusal(given)
    assert message in said
    assert remedy in advice


@pytest.mark.parametrize(
    ("denied", "may_pass"),
    [
        (facts(target=ROOT | {"TracerPid": "9"}), True),
        (facts(own=ROOT), True),  # nothing denies it: the tracer has detached since
        (facts(), True),
        (facts(target=ROOT), False),
        (facts(own=WEAK_ROOT), False),
        (facts(is_dumpable=False), False),
        (facts(target=USER | {"CapPrm": "2000"}), False),
        (facts(ptrace_scope=1), False),
        (facts(own=ROOT, ptrace_scope=3), False),
    ],
)
def test_only_another_tracer_passes(denied, may_pass):
    assert is_transient(denied) is may_pass
