"""Who requested the data, in chains whose truth is written beside them."""

import pytest

from machtrace.audit.trail.attribution import attribute
from machtrace.audit.trail.owners import UNKNOWN, Reason
from tests.audit.trail.program import Program
from tests.audit.trail.scenarios import SCENARIOS, UNDECIDABLE

CALLS = 250


@pytest.fixture(scope="module")
def recorded():
    """All scenarios in one program, mixed."""
    program = Program(seed=7)
    order = [name for name in [*SCENARIOS, *UNDECIDABLE] for _ in range(CALLS)]
    program.random.shuffle(order)
    for name in order:
        run = SCENARIOS.get(name) or UNDECIDABLE[name][0]
        run(program)
        program.scenario[-1] = name
    code, facts = program.code()
    trail = program.trail()
    trail.check()
    return program, attribute(trail, code, facts)


def answers(program, result, name):
    for number, each in enumerate(program.scenario):
        if each == name:
            row = result.row_of_call[number]
            yield (
                program.expected[number],
                result.library_name(result.asker[row]),
                result.library_name(result.owner[row]),
                int(result.flags[row]),
                Reason(int(result.asker_reason[row])),
                Reason(int(result.owner_reason[row])),
            )


@pytest.mark.parametrize("name", SCENARIOS)
def test_asker_and_owner_are_the_truth(recorded, name):
    program, result = recorded
    seen = list(answers(program, result, name))
    assert len(seen) == CALLS
    for expected, asker, owner, flags, *reasons in seen:
        truth = (expected.asker, expected.owner, expected.flags)
        assert (asker, owner, flags) == truth, reasons


@pytest.mark.parametrize("name", UNDECIDABLE)
def test_an_answer_that_the_stack_does_not_have_is_unknown_with_its_reason(recorded, name):
    program, result = recorded
    _, asker_reason, owner_reason = UNDECIDABLE[name]
    for expected, asker, owner, _, *reasons in answers(program, result, name):
        assert asker == (expected.asker or "?")
        assert owner == (expected.owner or "?")
        assert reasons == [asker_reason, owner_reason]


def test_no_library_is_wrong_in_ten_thousand_calls(recorded):
    program, result = recorded
    decidable = [each for name in SCENARIOS for each in answers(program, result, name)]
    wrong = [each for each in decidable if each[1:3] != (each[0].asker, each[0].owner)]
    unknown = [each for each in decidable if "?" in each[1:3]]
    assert len(SCENARIOS) >= 40
    assert len(decidable) >= 10_000
    assert not wrong
    assert not unknown


def test_an_unknown_answer_has_a_reason_and_a_known_one_none(recorded):
    _, result = recorded
    assert ((result.asker == UNKNOWN) == (result.asker_reason != Reason.NONE)).all()
    assert ((result.owner == UNKNOWN) == (result.owner_reason != Reason.NONE)).all()


def test_one_of_several_libraries_is_reported_with_the_others(recorded):
    program, result = recorded
    row = int(result.row_of_call[program.scenario.index("tail_calls_of_two_libraries")])
    assert {result.library_name(each) for each in result.candidates[row]} == {"Alpha", "Beta"}
