"""Flame graphs as SVG files: positions, escaping, size, and their script in a browser."""

from __future__ import annotations

from io import StringIO
from xml.etree import ElementTree as ET

import pytest

from machtrace.reports.html.flame_graph import write
from machtrace.reports.stacks.profiles import profile_of
from machtrace.reports.writers import write_reports
from tests.reports.html.test_html_page import made_report, made_tree
from tests.support.peers.chromium import chromium_page, chromium_program

SVG = "{http://www.w3.org/2000/svg}"
TREE = made_tree(
    [(None, 10, "main"), (0, 7, "kit:draw"), (1, 5, "system:copy"), (0, 3, "wait")], thread=5
)


def svg_of(*trees):
    """Write the graph of trees and parse it."""
    sink = StringIO()
    write(profile_of(made_report(trees=list(trees))), sink)
    return ET.fromstring(sink.getvalue())  # noqa: S314 - our own file


def frames_of(svg):
    """Return the frames' names, samples, first samples and levels."""
    return [
        (group.get("data-name"), *(int(group.get(f"data-{key}")) for key in ("w", "x", "level")))
        for group in svg.find(f"{SVG}g")
    ]


def test_frames_are_as_wide_as_their_samples_and_below_their_callers():
    svg = svg_of(TREE)
    (root, thread, *frames) = frames_of(svg)
    assert root == ("all", 10, 0, 0)
    assert thread[1:] == (10, 0, 1)
    assert frames == [("main", 10, 0, 2), ("draw", 7, 0, 3), ("copy", 5, 0, 4), ("wait", 3, 7, 3)]
    boxes = {
        group.get("data-name"): [float(group[1].get(key)) for key in ("x", "y", "width")]
        for group in svg.find(f"{SVG}g")
    }
    assert boxes["all"][0] == boxes["draw"][0] == 10
    assert boxes["draw"][2] == pytest.approx(840, abs=1)
    assert boxes["wait"][0] == pytest.approx(850, abs=0.1)
    assert boxes["all"][1] < boxes["main"][1] < boxes["draw"][1] < boxes["copy"][1]
    assert boxes["wait"][1] == boxes["draw"][1]
    titles = [group[0].text for group in svg.find(f"{SVG}g")]
    assert "draw (Kit)\n7 samples, 70.00%" in titles


def test_threads_are_beside_each_other():
    other = made_tree([(None, 30, "main")], thread=6)
    frames = frames_of(svg_of(TREE, other))
    assert [frame[1:] for frame in frames if frame[3] == 1] == [(10, 0, 1), (30, 10, 1)]


@pytest.mark.parametrize(
    "name", ["a<b>::f(c&, \"d\", 'e')", "]]></script>", "\x00\x1b[31m\ufffe\uffff", "ä😀 \u202e"]
)
def test_names_are_text(name):
    """The file is XML for any name, which is in it, printable."""
    svg = svg_of(made_tree([(None, 1, name)], thread=5))
    (shown,) = [group for group in svg.find(f"{SVG}g") if group.get("data-level") == "2"]
    assert shown[0].text.startswith(shown.get("data-name"))
    if name.isprintable() and "\ufffe" not in name:
        assert shown.get("data-name") == name


def test_the_size_is_bounded():
    """The widest frames are drawn; the number of the others is stated."""
    wide = [(None, 200_000, "root")]
    wide += [(0, 2, f"function {number}") for number in range(100_000)]
    deep = [(number - 1 if number else None, 1, f"f{number % 90}") for number in range(50_000)]
    long = [(None, 9, "n" * 100_000)]
    for tree, most in ((wide, 100_000), (deep, 1_200_000), (long, 20_000)):
        written = write_reports([made_report(trees=[made_tree(tree, thread=5)])], "svg")
        assert len(written) < most
        ET.fromstring(written)  # noqa: S314 - as above
        assert (b"too narrow or too deep to be drawn" in written) == (tree is not long)


def test_no_samples():
    assert frames_of(svg_of()) == [("all", 0, 0, 0)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Yield a page of a headless Chromium."""
    if chromium_program() is None:
        pytest.skip("no Chromium (Debian: chromium)")
    with chromium_page(tmp_path_factory.mktemp("browser")) as page:
        yield page


def shown(browser):
    """Return the names of visible frames, each with its width rounded."""
    return browser.value(
        "[...document.querySelectorAll('#frames > g')]"
        ".filter(g => getComputedStyle(g).display !== 'none')"
        ".map(g => [g.dataset.name, Math.round(g.querySelector('rect').getAttribute('width'))])"
    )


def text_of(browser, name):
    return browser.value(f"document.getElementById('{name}').textContent")


@pytest.mark.peer
def test_the_script_shows_zooms_and_searches(browser, tmp_path):
    path = tmp_path / "graph.svg"
    path.write_bytes(write_reports([made_report(trees=[TREE])], "svg"))
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(path)
    groups = "document.querySelectorAll('#frames > g')"
    assert len(shown(browser)) == 6
    browser.value(f"{groups}[3].dispatchEvent(new MouseEvent('mouseenter'))")
    assert text_of(browser, "status") == "draw (Kit)  7 samples, 70.00%"

    browser.value(f"{groups}[3].dispatchEvent(new MouseEvent('click'))")
    zoomed = dict(shown(browser))
    assert "wait" not in zoomed
    assert (zoomed["main"], zoomed["draw"], zoomed["copy"]) == (1200, 1200, 857)
    browser.value("document.getElementById('out').dispatchEvent(new MouseEvent('click'))")
    assert dict(shown(browser))["wait"] == 360

    browser.value("document.documentElement.machtrace.search('COPY')")
    assert text_of(browser, "matched") == "1 matched: 50.0 %"
    assert browser.value("document.querySelector('.hit').dataset.name") == "copy"
    # The frames of one search that contain each other count once.
    browser.value("document.documentElement.machtrace.search('a')")
    assert text_of(browser, "matched").endswith(": 100.0 %")

    browser.value(f"{groups}[4].focus()")
    browser.press("Enter")
    assert dict(shown(browser))["copy"] == 1200
    browser.press("Escape")
    assert len(shown(browser)) == 6
    assert text_of(browser, "matched") == ""
    assert browser.complaints == []
    assert browser.requests == [path.as_uri()]
