"""Flame graphs, differences, functions, hangs and audits in a browser: drawn, searched, by keys."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.server.pages.test_browser import (
    ENTER,
    HOSTILE,
    NARROW,
    WIDE,
    browser,
    hostile,
    pytestmark,
    visited,
)
from tests.server.pages.test_graphs import NAME, PAGES, watched

__all__ = ["browser", "hostile", "pytestmark", "watched"]
PATHS = (*PAGES, f"/functions?name={quote(NAME)}&stacks=subject", "/diff?stacks=subject")
INK = (
    "(() => { const canvas = document.querySelector('canvas'); const { data } = canvas.getContext"
    "('2d').getImageData(0, 0, canvas.width, canvas.height); return data.some(Boolean); })()"
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_page(browser, served, watched, width, scheme):
    browser.size(width)
    browser.media(prefers_color_scheme=scheme)
    for client in (served, watched):
        for path in PATHS:
            assert (path, visited(browser, client, path)) == (path, [])


def test_an_empty_warehouse(browser, client):
    for path in PATHS:
        assert (path, visited(browser, client, path)) == (path, [])


def test_hostile_names(browser, hostile):
    browser.size(WIDE)
    paths = [*PATHS, *(f"/functions?name={quote(name)}&stacks=subject" for name in HOSTILE[:6])]
    paths += [f"/flame?function={quote(name)}&stacks=subject" for name in HOSTILE[:6]]
    paths += [f"/hangs?build={quote(HOSTILE[0])}", f"/diff?a={quote(HOSTILE[0])}&b=true"]
    for path in paths:
        assert (path, visited(browser, hostile, path)) == (path, [])
        assert browser.value("document.title") != "owned"
        assert browser.value("document.querySelectorAll('main img, main iframe').length") == 0


def status(browser):
    return browser.value("document.querySelector('.status').textContent")


def test_a_flame_graph_by_keyboard(browser, served):
    browser.size(WIDE)
    visited(browser, served, "/flame?stacks=subject")
    assert browser.value(INK)
    assert status(browser).startswith("all: 100.00 %")
    assert browser.value("document.querySelector('.actions').hidden")
    browser.value("document.querySelector('canvas').focus()")
    browser.press("ArrowDown")
    assert status(browser).startswith("main (Wanderer): 100.00 %")
    browser.press("Enter")
    browser.press("/", "/")
    browser.wait_for("document.activeElement.type === 'search'")
    browser.type("settings.sync")
    browser.wait_for("document.querySelector('.status').textContent.includes('match')")
    browser.strike("Escape", 27)
    browser.wait_for("document.activeElement.tagName === 'CANVAS'")
    browser.value("document.querySelector('.actions .function').focus()")
    browser.strike(*ENTER)
    browser.wait_for("location.pathname === '/functions' && document.readyState === 'complete'")
    assert browser.value("document.querySelector('h1').textContent") == "main"


def test_a_difference_is_stated_in_words(browser, served):
    visited(browser, served, "/diff?stacks=subject")
    assert browser.value(INK)
    browser.value("document.querySelector('canvas').focus()")
    for _ in range(4):
        browser.press("ArrowDown")
    assert " → " in status(browser)
    assert " to " in status(browser)


def test_callers_are_above(browser, served):
    visited(browser, served, f"/functions?name={quote(NAME)}&stacks=subject")
    browser.value("document.querySelector('.up canvas').focus()")
    browser.press("ArrowUp")
    assert status(browser).startswith(f"{NAME} (Wanderer)")
    browser.press("ArrowUp")
    assert status(browser).startswith("AppDelegate.")


def test_without_a_script(browser, served):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        visited(browser, served, "/flame?stacks=subject")
        browser.wait_for("document.querySelector('.picture')?.naturalWidth > 0")
        assert browser.value("document.querySelector('.flame').offsetHeight") == 0
        assert browser.value("document.querySelectorAll('.costs tbody tr').length") > 5
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
