"""Who requested the data, in chains whose truth is written beside them."""

import pytest

from machtrace.audit.trail.owners import UNKNOWN, Reason
from tests.audit.trail.lab import CALLS, MAX_UNKNOWN, Lab
from tests.audit.trail.program import MAP, NAMES
from tests.audit.trail.scenarios import SCENARIOS, UNDECIDABLE


@pytest.fixture(scope="module")
def lab():
    return Lab()


@pytest.mark.parametrize("name", SCENARIOS)
def test_asker_and_owner_are_the_truth(lab, name):
    answers = lab.of(name)
    assert len(answers) == CALLS
    for answer in answers:
        truth = answer.expected
        assert (answer.asker, answer.owner, answer.flags) == (
            truth.asker,
            truth.owner,
            truth.flags,
        ), answer


@pytest.mark.parametrize("name", UNDECIDABLE)
def test_an_answer_that_the_stack_does_not_have_is_unknown_with_its_reason(lab, name):
    _, *reasons = UNDECIDABLE[name]
    for each in lab.of(name):
        assert each.asker == (each.expected.asker or "?")
        assert each.owner == (each.expected.owner or "?")
        assert [each.asker_reason, each.owner_reason] == reasons


def test_no_library_is_wrong_or_unknown_in_ten_thousand_calls(lab):
    answers = lab.of(*SCENARIOS)
    assert len(SCENARIOS) >= 40
    assert len(answers) >= 10_000
    assert not [answer for answer in answers if answer.is_wrong or answer.is_unknown]


@pytest.mark.parametrize(("known_by", "most_unknown"), [(MAP, MAX_UNKNOWN), (NAMES, 0.2)])
def test_no_library_is_wrong_in_a_stripped_program(known_by, most_unknown):
    stripped = Lab(known_by=known_by)
    answers = stripped.of(*stripped.scenarios)
    assert not [answer for answer in stripped.answers if answer.is_wrong]
    assert sum(answer.is_unknown for answer in answers) <= most_unknown * len(answers)


def test_an_unknown_answer_has_a_reason_and_a_known_one_none(lab):
    result = lab.result
    assert ((result.asker == UNKNOWN) == (result.asker_reason != Reason.NONE)).all()
    assert ((result.owner == UNKNOWN) == (result.owner_reason != Reason.NONE)).all()


def test_one_of_several_libraries_is_reported_with_the_others(lab):
    number = lab.program.scenario.index("tail_calls_of_two_libraries")
    row = int(lab.result.row_of_call[number])
    names = {lab.result.library_name(each) for each in lab.result.candidates[row]}
    assert names == {"Alpha", "Beta"}
