"""Spindumps and microstackshots: blocks of processes, notes on states, offsets in images."""

from __future__ import annotations

import pytest

from machtrace.model.report import Adjustment, Report, ReportKind
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.spindump import parse_frame_line
from tests.support.reports.samples import MICROSTACKSHOT, SPINDUMP
from tests.support.reports.variants import PROCESS_BLOCKS


def spun(text: bytes) -> Report:
    """Return the one report of a text."""
    (report,) = read_source(ReportSource("spin", text)).reports
    return report


def test_the_process_that_it_is_about_comes_first() -> None:
    """The others follow with what is theirs."""
    report = spun(SPINDUMP)
    assert (report.process.name, report.process.pid) == ("App", 455)
    assert [task.process.name for task in report.others] == ["launchd"]
    assert (report.incident.kind, report.system.os_build) == ("hang", "24D60")


def test_offsets_in_images_are_the_texts_own() -> None:
    """They need no load address; the kernel's frames are marked."""
    tree = spun(SPINDUMP).trees[0]
    start, main, kernel = (node.frame for node in tree.nodes)
    assert (start.offset, main.offset, kernel.offset) == (224, 416, 1113914)
    assert main.location is not None
    assert (main.location.path, main.location.line, main.location.column) == ("App.swift", 31, 1)
    assert kernel.details == {"kernel": True, "samples": "(blocked by turnstile) 41-49"}
    assert [node.parent for node in tree.nodes] == [None, 0, 1]


def test_blocks_alone_are_a_spindump_too() -> None:
    """People copy them out of one."""
    report = spun(PROCESS_BLOCKS)
    assert report.kind is ReportKind.SPINDUMP
    assert (report.process.name, report.process.pid) == ("adid", 99159)
    assert report.process.details["unique pid"] == 696637
    assert report.images[0].name == "Framework"
    assert report.images[0].details["label"] == "org.example.Framework 6.9"
    assert report.images[1].size is None


def test_a_note_on_the_state_is_no_callee() -> None:
    """The frame above it is where the thread was."""
    nodes = spun(PROCESS_BLOCKS).trees[0].nodes
    assert nodes[2].frame.symbol is not None
    assert nodes[2].frame.symbol.name == "kevent64"
    assert nodes[2].frame.adjustment is Adjustment.EXACT
    assert nodes[1].frame.adjustment is Adjustment.RETURN
    assert nodes[3].samples == 6


@pytest.mark.parametrize(
    ("line", "name", "offset", "image", "image_offset", "address"),
    [
        ("  9  start + 462 (dyld + 224) [0x1e0]", "start", 462, "dyld", 224, 0x1E0),
        ("  9  ??? (My App (2) + 7) [0x1e0] 1-9", None, None, "My App (2)", 7, 0x1E0),
        ("  9  f(int) (in x) + 4 (My App (2) + 7)", "f(int) (in x)", 4, "My App (2)", 7, None),
        ("  9  -[A b:c:] + 4 (A + 7) [0x1] (running) 4", "-[A b:c:]", 4, "A", 7, 1),
        ("  9  main + 9 (a b.swift in A + 7) [0x1]", "main", 9, "A", 7, 1),
        (
            "  9  <patched truncated backtrace>",
            "<patched truncated backtrace>",
            None,
            None,
            None,
            None,
        ),
        ("  9  ??? [0x1e0]", None, None, None, None, 0x1E0),
    ],
)
def test_frames(
    line: str,
    name: str | None,
    offset: int | None,
    image: str | None,
    image_offset: int | None,
    address: int | None,
) -> None:
    """Brackets can be in names of functions and of images."""
    frame = parse_frame_line(line)
    assert frame is not None
    assert (frame.name, frame.offset, frame.image) == (name, offset, image)
    assert (frame.image_offset, frame.address, frame.depth) == (image_offset, address, 0)


def test_a_microstackshot_has_one_tree_of_all_threads() -> None:
    """Its labels state so."""
    report = spun(MICROSTACKSHOT)
    assert report.kind is ReportKind.MICROSTACKSHOT
    (tree,) = report.trees
    assert (tree.thread, [node.samples for node in tree.nodes]) == (None, [6, 2])
    assert report.details["Heaviest stack for the target process"] == ["  6  a (App + 1) [0x1]"]


def test_images_that_are_not_listed_begin_where_offsets_say() -> None:
    """Blocks that were copied have no list."""
    text = (
        b"Process:         sh [7]\nPath:            /bin/sh\nNum samples:     3 (1-3)\n\n"
        b"  Thread 0x18    3 samples (1-3)    priority 31 (base 31)\n"
        b"  3  ??? (sh + 10774) [0x104010a16]\n"
    )
    (image,) = spun(text).images
    assert (image.name, image.load_address) == ("sh", 0x104010A16 - 10774)
