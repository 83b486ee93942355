"""The HTML page: what is in it, that nothing gets out of it, and what it does in a browser."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from machtrace.model.report import (
    LanguageException,
    NameSource,
    ReportedImage,
    ReportedRegister,
    ReportedRegisters,
    ReportedSymbol,
)
from machtrace.reports.writers import write_reports
from tests.support.peers.chromium import chromium_page, chromium_program
from tests.support.reports.models import (
    IMAGES,
    made_frame,
    made_report,
    made_thread,
    made_tree,
)

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "--><img src=x onerror=\"document.title='owned'\">",
    "\"' onmouseover=\"document.title='owned'",
    "<!--<script>",
    "&lt;b&gt; &#x3c;",
    "\u202egnp.exe\u2066",
    "\x00\x1b[31m\udcff",
    "]]>{{constructor}}",
)
SYSTEM = [f"system:s{number}" for number in range(6)]
CRASH = made_report(
    made_thread(0, ["system:abort", "kit:fail", *SYSTEM, "run", "main"], crashed=True),
    made_thread(1, ["system:__workq_kernreturn", "system:start_wqthread"]),
)


class _Elements(HTMLParser):
    """Counts elements, and keeps text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.attributes = {}, "", []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def page_of(*reports):
    """Return the page, as text."""
    return write_reports(reports, "html").decode()


def test_it_asks_no_network_for_anything():
    """No address of any other file, and a policy that would not let one be loaded."""
    page = page_of(CRASH)
    elements = _Elements(page)
    assert not {name for name, _ in elements.attributes} & {"src", "action", "data", "srcset"}
    assert {"link", "img", "iframe", "object"}.isdisjoint(elements.tags)
    assert "http://" not in page
    assert "https://" not in page
    head = page[: page.index("<style>")]
    assert "default-src 'none'" in head
    assert "unsafe" not in head


def test_threads_frames_and_images_are_there():
    """Names, places, addresses, UUIDs; the system's frames in a row are folded."""
    text = _Elements(page_of(CRASH)).text
    for said in ("Thread 0", "crashed", "fail", "run", "0x110001000", str(IMAGES[0].uuid).upper()):
        assert said in text
    assert "6 frames of the system: libsystem_kernel.dylib" in text
    assert "work: an idle worker thread" in text


def test_where_names_are_from_is_marked():
    """A name from the report has no mark; inlined calls are marked."""
    frame = made_frame("run", line=7)
    symbol = ReportedSymbol("run", 8, NameSource.DEBUG_INFORMATION)
    inlined = made_frame("inner", line=3, is_inline=True)
    thread = replace(
        made_thread(0, [], crashed=True), frames=(inlined, frame._replace(symbol=symbol))
    )
    page = page_of(made_report(thread))
    assert '<u class="debug">debug</u>' in page
    assert "<u>inlined</u>" in page
    assert ">demo.c:7</cite>" in page
    plain = page_of(made_report(made_thread(0, ["run"], crashed=True)))
    assert '<u class="debug">' not in plain[: plain.index("<footer>")]


def test_missing_names_of_the_app_are_listed_with_their_file():
    """By the UUID that a dSYM must have; the system's are not."""
    report = made_report(made_thread(0, ["system:abort", "", "main"], crashed=True))
    text = _Elements(page_of(report)).text
    assert "1 frame of the app without names: Demo — pass machtrace symbolicate" in text
    assert "without names: libsystem" not in text


def test_recursion_is_folded():
    """The rest of its frames can be opened."""
    names = ["fail", *["walk", "visit"] * 30, "main"]
    text = _Elements(page_of(made_report(made_thread(0, names, crashed=True)))).text
    assert "30 times: 58 more frames of the same" in text


def test_several_reports_are_grouped():
    """Each has a link."""
    page = page_of(CRASH, CRASH, made_report(made_thread(0, ["other"], crashed=True)))
    assert 'href="#report-1"' in page
    assert 'id="report-3"' in page
    assert "3 reports" in page


def test_an_exception_its_registers_and_details():
    """Everything in a report is on the page."""
    thread = replace(
        made_thread(0, ["main"], crashed=True),
        registers=ReportedRegisters(registers=(ReportedRegister("pc", 0xABCD),)),
    )
    thrown = LanguageException(
        name="NSRangeException", reason="beyond", frames=(made_frame("pick"),)
    )
    report = replace(
        made_report(thread),
        language_exception=thrown,
        details={"trialInfo": {"rollouts": [1]}},
        warnings=("odd line",),
        application_information=(("libsystem_c.dylib", ("abort() called",)),),
    )
    text = _Elements(page_of(report)).text
    for said in ("beyond", "pick", "0x000000000000abcd", "rollouts", "odd line", "abort() called"):
        assert said in text


def hostile_report():
    """Return a report with hostile text in every field."""
    frames = tuple(
        made_frame("x", details={hostile: hostile})._replace(
            symbol=ReportedSymbol(hostile, 1), image=0
        )
        for hostile in HOSTILE
    )
    threads = tuple(
        replace(made_thread(n, [], crashed=n == 0), name=hostile, queue=hostile, frames=frames)
        for n, hostile in enumerate(HOSTILE)
    )
    report = made_report(*threads, version=HOSTILE[0])
    images = (ReportedImage(name=HOSTILE[1], path="/" + HOSTILE[0], version=HOSTILE[2]),)
    return replace(
        report,
        images=images,
        details={one: one for one in HOSTILE},
        warnings=HOSTILE,
        process=replace(report.process, name=HOSTILE[0], path=HOSTILE[1]),
    )


def test_hostile_names_stay_text():
    """No element and no attribute comes from a report; nothing turns the direction of text."""
    page = page_of(hostile_report())
    elements = _Elements(page)
    assert elements.tags["script"] == 2  # the data, and ours
    assert "img" not in elements.tags
    assert not [name for name, _ in elements.attributes if name.startswith("on")]
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", page)


def test_a_page_of_a_big_report_stays_small():
    """It has a hundred threads of a hundred frames, and a tree of fifty thousand nodes."""
    names = [f"function_{number}" for number in range(100)]
    threads = [made_thread(number, names, crashed=number == 0) for number in range(100)]
    assert len(page_of(made_report(*threads))) < 3_000_000
    chain = [(at - 1 if at else None, 1, f"f{at % 900}") for at in range(50_000)]
    assert len(page_of(made_report(trees=[made_tree(chain, thread=1)]))) < 3_000_000


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Yield a page of a headless Chromium."""
    if chromium_program() is None:
        pytest.skip("no Chromium (Debian: chromium)")
    with chromium_page(tmp_path_factory.mktemp("browser")) as page:
        yield page


def opened(browser, path: Path, *reports):
    """Return the page in the browser, with its first flame graph in sight."""
    path.write_bytes(write_reports(reports, "html"))
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(path)
    browser.value("document.querySelector('.flame').scrollIntoView()")
    browser.wait_for("document.querySelector('.flame .status').textContent")
    return browser


def status(browser):
    """Return the flame graph's description of the selected box."""
    return browser.value("document.querySelector('.flame .status').textContent")


@pytest.mark.peer
def test_the_flame_graph_is_used_by_keyboard(browser, tmp_path):
    """Down to what was called, into it and out; the page's own policy lets its script run."""
    tree = made_tree([(None, 10, "main"), (0, 7, "kit:draw"), (1, 5, "system:copy")], thread=5)
    page = opened(browser, tmp_path / "page.html", made_report(trees=[tree]))
    assert status(page) == "all: 10 samples, 100.0 %, 0 own"
    page.value("document.querySelector('canvas').focus()")
    for _ in range(3):
        page.press("ArrowDown")
    assert status(page) == "draw (Kit): 7 samples, 70.0 %, 2 own"
    page.press("Enter")
    page.press("ArrowDown")
    assert status(page) == "copy (libsystem_kernel.dylib): 5 samples, 50.0 %, 5 own"
    page.press("Escape")
    assert status(page).startswith("main (Demo)")
    assert page.complaints == []
    assert {(tmp_path / "page.html").as_uri()} == set(page.requests)


@pytest.mark.peer
def test_searching_finds_rows_and_boxes(browser, tmp_path):
    """Folded frames are opened; threads without a match are dimmed."""
    page = opened(browser, tmp_path / "page.html", CRASH)
    page.press("/", "/")
    page.type("s3")
    page.wait_for("document.getElementById('found').textContent === '1 rows'")
    assert page.value("document.querySelector('.f.hit').checkVisibility()")
    assert page.value("document.querySelectorAll('details.thread.missed').length") == 1
    assert status(page).startswith("1 samples match")


@pytest.mark.peer
def test_threads_put_together(browser, tmp_path):
    """Common prefixes of two threads are one box."""
    report = made_report(made_thread(0, ["a", "main"]), made_thread(1, ["b", "main"]))
    page = opened(browser, tmp_path / "page.html", report)
    page.value(
        "const m = document.querySelector('.mode'); m.value = 'merged';"
        "m.dispatchEvent(new Event('change'))"
    )
    page.value("document.querySelector('canvas').focus()")
    page.press("ArrowDown")
    assert status(page) == "main (Demo): 2 samples, 100.0 %, 0 own"


@pytest.mark.peer
def test_hostile_names_do_nothing(browser, tmp_path):
    """Not even when all is opened and the graph is drawn."""
    page = opened(browser, tmp_path / "page.html", hostile_report())
    page.value("document.getElementById('open-all').click()")
    assert page.value("document.title") != "owned"
    assert page.complaints == []


@pytest.mark.peer
def test_a_deep_tree_can_be_scrolled(browser, tmp_path):
    """Fifty thousand rows; only those in sight are drawn."""
    chain = [(at - 1 if at else None, 1, f"f{at % 900}") for at in range(50_000)]
    page = opened(browser, tmp_path / "page.html", made_report(trees=[made_tree(chain, thread=1)]))
    page.value("const s = document.querySelector('.scroller'); s.scrollTop = s.scrollHeight")
    height = "document.querySelector('.spacer').getBoundingClientRect().height"
    assert page.value(height) == 50_002 * 18
    assert page.value("document.querySelector('canvas').getBoundingClientRect().height") < 1000
    assert page.complaints == []


@pytest.mark.peer
def test_it_is_dark_where_the_user_has_it_so(browser, tmp_path):
    """The system's preference decides."""
    page = opened(browser, tmp_path / "page.html", CRASH)
    shade = "getComputedStyle(document.body).backgroundColor"
    assert page.value(shade) == "rgb(255, 255, 255)"
    page.media(prefers_color_scheme="dark")
    assert page.value(shade) == "rgb(22, 24, 28)"
    page.media()
