"""The page of observed calls in a browser: an audit of the emulated app."""

import pytest
from click.testing import CliRunner

from machtrace.cli.application import app
from tests.support.peers.chromium import chromium_page, chromium_program

pytestmark = [pytest.mark.peer, pytest.mark.emulated]
COUNT = "document.getElementById('count').textContent"
SHOWN = (
    "[...document.querySelectorAll('details.finding, details.cell')]"
    ".filter((each) => each.offsetParent).map((each) => each.firstElementChild.textContent)"
)
FINDINGS = (
    "[...document.querySelectorAll('details.finding')].filter((each) => each.offsetParent).length"
)
PHONE = {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": False}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    words = ["audit", "run", "emulated:demo", "--format", "html"]
    result = CliRunner().invoke(app, words, standalone_mode=False)
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(result.stdout, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if chromium_program() is None:
        pytest.skip("no Chromium (Debian: chromium)")
    with chromium_page(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(browser, path):
    browser.open(path)
    yield browser
    assert browser.complaints == []
    assert {request.partition("#")[0] for request in browser.requests} == {path.as_uri()}


def test_a_cell_opens_into_stacks_and_a_graph(page):
    """By arrow keys and return."""
    page.value("document.querySelector('.matrix a').focus()")
    page.press("ArrowRight")
    page.press("Enter")
    opened = "document.querySelector('details.cell[open] summary')?.textContent"
    assert page.wait_for(opened) == ("Advertising, Device information: 2 calls of -[UIDevice name]")
    roles = (
        "[...document.querySelectorAll('details.cell[open] .graph g')].map((g) => g.classList[0])"
    )
    assert set(page.value(roles)) == {"app", "library", "system"}
    asker = "document.querySelector('details.cell[open] .asker').textContent"
    assert page.value(asker).startswith("Advertising")


def test_a_search_finds_what_a_heading_has(page):
    """The stacks of a function that the heading alone names."""
    page.press("/", "/")
    page.type("vendor warning")
    page.wait_for(COUNT)
    assert page.value(COUNT) == "1 of 25 rows"
    (shown,) = page.value(SHOWN)
    assert shown.startswith("warning: Analytics called -[UIDevice identifierForVendor]")
    page.press("Escape")
    assert page.value(COUNT) == ""


def test_calls_with_consent_can_be_hidden(page):
    """Findings of other conditions, and stacks of later calls."""
    assert page.value(FINDINGS) == 10
    page.value("document.getElementById('sure-only').click()")
    assert page.value(FINDINGS) == 7
    assert page.value(COUNT) == "14 of 25 rows"


def test_a_narrow_page_does_not_scroll_sideways(page):
    page.value("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    page.call("Emulation.setDeviceMetricsOverride", **PHONE)
    width = page.value("document.documentElement.scrollWidth")
    page.call("Emulation.clearDeviceMetricsOverride")
    assert width <= PHONE["width"]


def test_colours_follow_the_system(page):
    colour = "getComputedStyle(document.body).backgroundColor"
    page.media(prefers_color_scheme="light")
    light = page.value(colour)
    page.media(prefers_color_scheme="dark")
    assert page.value(colour) != light
    page.media(prefers_color_scheme="")
