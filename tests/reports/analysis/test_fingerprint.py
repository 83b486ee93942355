"""Fingerprints of reports, equal for the same problem."""

from dataclasses import replace

from machtrace.model.report import LanguageException
from machtrace.reports.analysis.fingerprint import FingerprintBasis, fingerprint
from machtrace.reports.analysis.frame_owner import OwnerReason
from machtrace.reports.analysis.groups import report_groups
from machtrace.reports.analysis.subject_stack import SubjectKind, subject_stack
from tests.support.reports.models import made_frame, made_report, made_thread, made_tree


def crash(*names, **named):
    """Return a report of one thread that crashed."""
    return made_report(made_thread(0, names, crashed=True), **named)


def hash_of(*names):
    """Return the fingerprint of a stack, innermost first."""
    report = crash(*names)
    return fingerprint(report.threads[0].frames, report).hash


def test_frames_of_the_system_do_not_count():
    """Another version of the system has others between the same frames of the app."""
    assert hash_of("system:abort", "kit:fail", "system:send", "run", "main") == hash_of(
        "system:raise", "system:abort", "kit:fail", "run", "main", "system:start"
    )


def test_another_frame_of_the_app_is_another_problem():
    """Its names count, and its images, and their order."""
    prints = {
        hash_of("kit:fail", "run"),
        hash_of("fail", "run"),
        hash_of("run", "kit:fail"),
        hash_of("kit:fail", "walk"),
    }
    assert len(prints) == 4


def test_how_deep_recursion_went_does_not_count():
    """A stack overflow is one problem, at whatever depth it ended."""
    assert hash_of("fail", *["walk", "visit"] * 40, "main") == hash_of(
        "fail", *["walk", "visit"] * 900, "main"
    )


def test_its_basis_is_stated():
    """The explanation lists the frames, their names and the reasons."""
    report = crash("system:abort", "kit:fail.cold.1", "specialized run()", "system:start")
    identity = fingerprint(report.threads[0].frames, report)
    assert FingerprintBasis.APP_FRAMES is identity.basis
    assert not identity.is_build_sensitive
    assert [(frame.place, frame.image, frame.name, frame.reason) for frame in identity.frames] == [
        (1, "Kit", "fail", OwnerReason.BUNDLE),
        (2, "Demo", "run()", OwnerReason.PROGRAM),
    ]
    assert identity.title == "fail (Kit)"


def test_without_frames_of_the_app_all_count():
    """The basis states it."""
    report = crash("system:abort", "system:start")
    identity = fingerprint(report.threads[0].frames, report)
    assert FingerprintBasis.OTHER_FRAMES is identity.basis
    assert [frame.name for frame in identity.frames] == ["abort", "start"]


def test_a_frame_without_a_name_is_its_place_in_the_build():
    """Another build does not share it, and the fingerprint is marked so."""
    report = crash("", "run")
    identity = fingerprint(report.threads[0].frames, report)
    assert identity.frames[0].name == "0x1000"
    assert identity.is_build_sensitive


def test_a_report_without_stacks_has_one_too():
    (group,) = report_groups([made_report(), made_report()])
    assert group.count == 2
    assert FingerprintBasis.NOTHING is group.fingerprint.basis
    assert group.subject is None


def test_groups_are_counted():
    """The largest is first; groups have exceptions and versions."""
    reports = [
        crash("system:abort", "draw", "main", version="1.0"),
        crash("load", "main", version="1.0", exception="EXC_BAD_ACCESS"),
        crash("load", "main", version="1.1"),
    ]
    first, second = report_groups(reports)
    assert first.reports == (1, 2)
    assert first.exceptions == (("EXC_BAD_ACCESS", 1), ("EXC_CRASH", 1))
    assert first.versions == (("1.0", 1), ("1.1", 1))
    assert second.reports == (0,)


def test_an_exception_s_stack_goes_before_the_thread_that_it_ended():
    """The thread's frames only show how the runtime ended the process."""
    report = crash("system:abort", "main")
    thrown = LanguageException(name="NSRangeException", frames=(made_frame("pick"),))
    subject = subject_stack(replace(report, language_exception=thrown))
    assert subject is not None
    assert SubjectKind.EXCEPTION is subject.kind
    assert subject.frames[0].symbol.name == "pick"


def test_of_a_tree_the_heaviest_stack_counts():
    """Its frames are innermost first, like those of threads."""
    tree = made_tree([(None, 9, "main"), (0, 2, "read"), (0, 7, "draw"), (2, 7, "system:wait")])
    subject = subject_stack(made_report(trees=[tree]))
    assert subject is not None
    assert [frame.symbol.name for frame in subject.frames] == ["wait", "draw", "main"]
