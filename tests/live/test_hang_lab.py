"""The short form of the lab of hangs: each hang lasts until ``machtrace watch`` has reported it."""

import pytest

from tests.support.hangs.programs import build, missing_reason
from tests.support.hangs.runner import run_until_reported
from tests.support.hangs.scenarios import UNTIL_RELEASED, Scenario, Step, action_of
from tests.support.hangs.scoring import Score

HANGS = {
    ("c", "epoll"): ("read", "mutex", "flock", "child", "burn", "leaves"),
    ("c", "epoll-30ms"): ("condition", "burn", "recv"),
    ("c", "select"): ("join", "rwlock"),
    ("python", "asyncio"): ("sleep", "lock", "recv", "child", "burn"),
    ("python", "selector-timeout"): ("read", "rlock", "join"),
}
QUIET = {
    "c": (("short", 3, 12), ("nothing", 1, 200), ("sleep", 20, 1), ("worker", 150, 1)),
    "python": (("short", 3, 12), ("nothing", 1, 100), ("sleep", 20, 1), ("worker", 150, 1)),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    reason = missing_reason("c")
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hangs")
    build(folder)
    return folder


@pytest.mark.parametrize(("program", "mode"), HANGS, ids=[" ".join(key) for key in HANGS])
def test_each_hang_is_reported_once_with_its_culprit_and_nothing_else(program, mode, programs):
    planned = [(name, UNTIL_RELEASED, 1) for name in HANGS[program, mode]]
    mixed = [step for hang in planned for step in (hang, *QUIET[program])]
    steps = tuple(Step(number, *step, gap_ms=60) for number, step in enumerate(mixed))
    run = run_until_reported(Scenario(program, mode, "fixed", steps), programs)
    score = Score()
    score.add(f"{program} {mode}", run.events, run.incidents)
    assert score.false == []
    assert score.missed == []
    assert score.repeated == 0
    assert run.status == 1
    wrong = {
        (match.event.action, match.incident.culprit)
        for match in score.matches
        if not match.is_inside
    }
    assert wrong == set()
    waits = {
        match.event.action: match.incident.verdict
        for match in score.matches
        if action_of(program, match.event.action).waits
    }
    assert set(waits.values()) <= {"blocked"}
