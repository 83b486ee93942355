"""``write_report`` and ``save`` of stacks and profiles, and their forms for notebooks."""

from __future__ import annotations

import json
from importlib.metadata import version
from io import BytesIO, StringIO
from pathlib import Path

import pytest

import machtrace as mt
from machtrace.errors import ArgumentError
from machtrace.model.capture import Capture
from machtrace.model.image import ImageList
from machtrace.model.profile import Profile
from machtrace.model.snapshot import ThreadId, ThreadInfo
from machtrace.model.stack import Stop, StopReason
from machtrace.model.symbol import CallStack
from machtrace.render import json_document, profile_json, sample_text, speedscope, text
from machtrace.reports.files import capture_of_stacks
from machtrace.reports.writers import FORMATS
from tests.support.reports.models import IMAGE, Seen, function, made_report, made_thread, profile

PROFILE = profile([Seen(0, [function("main"), function("<hot>", offset=0x300)], 3)])
STACK = CallStack(
    thread=ThreadInfo(id=ThreadId(7), index=1, name="<b>&", crashed=True),
    frames=(function("<hot>", is_leaf=True), function("main", offset=0x300)),
    stop=Stop(StopReason.ROOT),
)
CAPTURE = Capture(process=PROFILE.process, images=ImageList([IMAGE]), stacks=(STACK,))
REPORT = made_report(made_thread(0, ["<fail>", "main"], crashed=True))


def written(value: object, form: str) -> bytes:
    """Return what ``write_report`` writes."""
    sink = BytesIO()
    mt.write_report(value, form, sink)
    return sink.getvalue()


def rendered(writer: object, value: object) -> bytes:
    """Return what a writer of a command writes."""
    sink = StringIO()
    writer(value, sink)
    return sink.getvalue().encode()


def test_text_and_json_are_the_commands() -> None:
    """``machtrace sample`` and ``machtrace backtrace`` have the same formats."""
    assert written(PROFILE, "text") == rendered(sample_text.write, PROFILE)
    assert written(PROFILE, "json") == rendered(profile_json.write, PROFILE)
    assert written(PROFILE, "speedscope") == rendered(speedscope.write, PROFILE)
    assert written(CAPTURE, "text") == rendered(text.write, CAPTURE)
    assert written(CAPTURE, "json") == rendered(json_document.write, CAPTURE)


@pytest.mark.parametrize("form", FORMATS)
def test_stacks_and_profiles_are_written_in_all_formats(form: str) -> None:
    """A profile has no stacks of one moment."""
    for value in (CAPTURE, STACK, [STACK], REPORT, [REPORT]):
        assert written(value, form)
    if form in ("stacks-json", "lldb", "nsthread", "bs"):
        with pytest.raises(ArgumentError, match="sampled trees but no threads"):
            written(PROFILE, form)
    else:
        assert written(PROFILE, form)


def test_stacks_of_no_process_have_the_images_of_their_frames() -> None:
    capture = capture_of_stacks([STACK])
    assert list(capture.images) == [IMAGE]
    assert capture.process.arch is IMAGE.arch


@pytest.mark.parametrize(
    ("name", "beginning"),
    [
        ("a.speedscope.json", b'{"$schema"'),
        ("a.json", b'{"schema":1,"process"'),
        ("a.txt", b"Analysis of sampling Demo"),
        ("a.folded", b"main [259];main"),
        ("a.pb.gz", b"\x1f\x8b"),
        ("a.html", b"<!DOCTYPE html>"),
    ],
)
def test_a_profile_is_saved_by_suffix(name: str, beginning: bytes, tmp_path: Path) -> None:
    PROFILE.save(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(beginning)


def test_reports_and_stacks_are_saved_by_suffix(tmp_path: Path) -> None:
    REPORT.save(tmp_path / "a.ips")
    assert json.loads((tmp_path / "a.ips").read_text().split("\n")[0])["bug_type"]
    STACK.save(tmp_path / "a.txt")
    assert "Thread 1  “<b>&”  id 7  crashed" in (tmp_path / "a.txt").read_text()
    CAPTURE.save(tmp_path / "a.json")
    assert mt.read_report(tmp_path / "a.json").threads[0].crashed
    with pytest.raises(ArgumentError, match=r"no format has the suffix of .*a\.png"):
        CAPTURE.save(tmp_path / "a.png")


@pytest.mark.parametrize(
    "value", [STACK, CAPTURE, PROFILE, REPORT], ids=lambda one: type(one).__name__
)
def test_notebooks_show_escaped_text(value: CallStack | Capture | Profile) -> None:
    html = value._repr_html_()
    assert html.startswith("<div>")
    assert html.endswith("</div>")
    assert "&lt;" in html
    assert "<hot>" not in html
    assert "<fail>" not in html
    assert html.count("<details") == html.count("</details>") > 0


def test_the_version_is_the_package_s() -> None:
    assert mt.__version__ == version("machtrace")
