"""Pages in a browser: no other address, no script of a report, by keyboard, narrow and dark."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from machtrace.server.tokens import Scope, Tokens
from machtrace.warehouse.triage import State
from machtrace.warehouse.warehouse import Warehouse
from tests.server.pages.fleet import PROBLEMS, Problem, report
from tests.server.serving import Client, running
from tests.support.peers.chromium import Page, chromium_page, chromium_program

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(chromium_program() is None, reason="Chromium is not installed"),
]
CHECKS = (Path(__file__).parent / "checks.js").read_text()
WIDE, NARROW = 1280, 390
TAB, ENTER, SPACE = ("Tab", 9), ("Enter", 13), (" ", 32)
HOSTILE = (
    "</code></td><script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "' onmouseover='document.title=1",
    "\u202egnp.exe\u2066",
    "&lt;b&gt; ]]> {{constructor}}",
    "x" * 10_000,
    "\u4e00" * 10_000,
    "https://elsewhere.example/x.png",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium_page(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def addresses(client: Client, **options: str) -> list[str]:
    """Return an address of each page."""
    issues = client.get("/v1/issues", **options).json["issues"]
    paths = [
        "/",
        "/?page=9",
        "/?where=nothing",
        "/symbols",
        "/sql",
        "/sql?sql=FROM+reports",
        "/nothing",
    ]
    paths += ["/sql?sql=nothing", "/reports/" + "0" * 32, "/sign-in"]
    if issues:
        stack = issues[0]["variants"][0]["stack"]
        rows = client.rows("SELECT key FROM reports ORDER BY received LIMIT 2", **options)
        paths += [f"/issues/{issues[0]['id']}", f"/stacks/{stack}", f"/stacks/{stack}/through/1"]
        paths += [f"/reports/{row['key']}" for row in rows]
    return paths


def visited(browser: Page, client: Client, path: str) -> list[str]:
    """Open a page, and return its problems."""
    browser.complaints.clear()
    browser.requests.clear()
    base = f"http://127.0.0.1:{client.port}"
    browser.visit(base + path)
    problems = list(browser.value(CHECKS))
    problems += [request for request in browser.requests if not request.startswith(f"{base}/")]
    # The page of a refusal has its status.
    problems += [
        complaint for complaint in browser.complaints if "Failed to load resource" not in complaint
    ]
    return problems


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_page(browser, served, width, scheme):
    browser.size(width)
    browser.media(prefers_color_scheme=scheme)
    assert {path: visited(browser, served, path) for path in addresses(served)} == {
        path: [] for path in addresses(served)
    }


def test_dark_and_light_differ(browser, served):
    colors = set()
    for scheme in ("dark", "light"):
        browser.media(prefers_color_scheme=scheme)
        visited(browser, served, "/")
        colors.add(browser.value("getComputedStyle(document.body).backgroundColor"))
    assert len(colors) == 2


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_an_empty_warehouse(browser, client, width):
    browser.size(width)
    for path in addresses(client):
        assert visited(browser, client, path) == []


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A warehouse whose every text is hostile."""
    folder = tmp_path_factory.mktemp("hostile") / "<script>'\""
    with Warehouse.create(folder) as warehouse:
        for number, name in enumerate(HOSTILE):
            problem = Problem(
                name[:200], name[:200], (f"Wanderer:{name}|{name}:3", f"{name}:"), (), 1
            )
            body = report(problem, name[:300], number=number, device=name, system=name)
            warehouse.receive([(name[:100], body), (name[:50], b"\0" + name.encode())])
        warehouse.flush()
        warehouse.regroup()
        for issue, note in zip(warehouse.issues(), HOSTILE, strict=False):
            warehouse.decide(issue.id, State.OPEN, note)
    with running(folder) as client:
        yield client


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_hostile_names(browser, hostile, width):
    browser.size(width)
    issues = hostile.get("/v1/issues").json["issues"]
    assert len(issues) >= len(HOSTILE) - 1
    paths = addresses(hostile)
    paths += [f"/issues/{issue['id']}" for issue in issues]
    paths += [f"/stacks/{issue['variants'][0]['stack']}" for issue in issues]
    paths += [f"/reports/{row['key']}" for row in hostile.rows("SELECT key FROM reports")]
    paths += [f"/?where={quote(name)}" for name in HOSTILE] + [f"/{quote(HOSTILE[0])}"]
    paths += [f"/sql?sql={quote('FROM functions -- ' + HOSTILE[0])}"]
    for path in paths:
        assert visited(browser, hostile, path) == [], path
        assert browser.value("document.title") != "owned"
        assert (
            browser.value("document.querySelectorAll('main script, main img, main iframe').length")
            == 0
        )
        assert browser.value("document.documentElement.outerHTML.length") <= 200_000


def focused(browser: Page) -> str:
    return str(browser.value("document.activeElement.outerHTML"))


def press_until(browser: Page, part: str) -> None:
    """Press Tab until a link or a control has the focus with a text in its HTML."""
    for _ in range(80):
        browser.strike(*TAB)
        is_control = browser.value("document.activeElement.matches('a, button, input, textarea')")
        if is_control and part in focused(browser):
            outline = browser.value("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none"
            return
    raise AssertionError(f"the keyboard does not reach {part}")


def test_by_keyboard(browser, client):
    client.state(client.post("/v1/reports", report(PROBLEMS[0])).json["ids"][0])
    browser.size(WIDE)
    visited(browser, client, "/")
    browser.strike(*TAB)
    assert "Skip to the content" in focused(browser)
    browser.strike(*ENTER)
    assert browser.value("location.hash") == "#main"
    press_until(browser, "RouteStore")
    browser.strike(*ENTER)
    browser.wait_for(
        "location.pathname.startsWith('/issues/') && document.readyState === 'complete'"
    )
    press_until(browser, 'type="radio"')
    browser.strike("ArrowRight", 39)
    press_until(browser, 'name="note"')
    browser.type("by design")
    press_until(browser, "Decide")
    browser.strike(*ENTER)
    browser.wait_for("document.querySelector('blockquote')?.textContent === 'by design'")
    assert client.get("/v1/issues").json["issues"][0]["state"] == "resolved"


def test_signing_in_and_out(browser, folder):
    with Warehouse(folder) as warehouse:
        warehouse.receive([("a.ips", report(PROBLEMS[0]))])
        warehouse.flush()
        warehouse.regroup()
    tokens = {scope: Tokens(folder).create(scope) for scope in Scope}
    with running(folder, is_local=False) as client:

        def sign_in(token: str) -> None:
            browser.value("document.querySelector('#token').focus()")
            browser.type(token)
            browser.strike(*ENTER)

        assert visited(browser, client, "/symbols") == []
        assert browser.value("location.pathname + location.search") == "/sign-in?next=%2Fsymbols"
        sign_in("mt_read_wrong")
        browser.wait_for("document.body?.textContent.includes('This token is not valid.')")
        sign_in(tokens[Scope.INGEST])
        browser.wait_for("document.body?.textContent.includes('can send reports only')")
        sign_in(tokens[Scope.SYMBOLS])
        browser.wait_for("location.pathname === '/symbols' && document.readyState === 'complete'")
        assert browser.value("document.cookie") == ""
        assert visited(browser, client, "/") == []
        assert browser.value("document.body.textContent").count("scope is symbols") == 1
        visited(browser, client, "/sign-in?next=/sql")
        sign_in(tokens[Scope.ADMIN])
        browser.wait_for("location.pathname === '/sql' && document.readyState === 'complete'")
        for path in addresses(client, token=tokens[Scope.ADMIN]):
            assert visited(browser, client, path) == [], path
        browser.value("document.querySelector('.session button').click()")
        browser.wait_for("location.pathname === '/sign-in'")
        visited(browser, client, "/")
        assert browser.value("location.pathname") == "/sign-in"


def test_no_script_is_needed(browser, client):
    """All of it was shown above; forms work, too."""
    client.state(client.post("/v1/reports", report(PROBLEMS[0])).json["ids"][0])
    browser.size(WIDE)
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        visited(browser, client, "/sql")
        browser.value("document.querySelector('#sql').focus()")
        browser.type("SELECT 6 * 7 AS answer")
        press_until(browser, "Run")
        browser.strike(*ENTER)
        browser.wait_for("document.querySelector('.rows')?.textContent === 'answer42'")
        visited(browser, client, "/")
        browser.value("document.querySelector('[name=where]').focus()")
        browser.type("build = '811'")
        browser.strike(*ENTER)
        browser.wait_for(
            "location.search.includes('where=build') && document.readyState === 'complete'"
        )
        assert browser.value("document.querySelectorAll('.issues tbody tr').length") == 1
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
