"""Reports of a scan: the published schema, CSV, the page, and the comparison of builds."""

import csv
import io
import json
import re
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from machtrace.audit.baseline import Change, compare
from machtrace.audit.findings import judge
from machtrace.audit.output.html import html_page
from machtrace.audit.rules import load_rules
from machtrace.audit.scan.app import scan_app
from machtrace.audit.scan.manifest import parse_manifest
from machtrace.cli.audit.commands import audit
from machtrace.errors import FileAccessError, FormatError
from tests.audit.apps import assemble, declaring
from tests.support.peers.chromium import chromium_page, chromium_program

SCHEMA = json.loads(Path("docs/audit.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def app(images, tmp_path):
    return assemble(images, tmp_path / "Demo.app")


@pytest.fixture
def later(images, tmp_path):
    return assemble(images, tmp_path / "later" / "Demo.app", "Later")


def run(*words):
    """Return the exit status and the output of a command."""
    done = CliRunner().invoke(audit, [str(word) for word in words], standalone_mode=False)
    assert done.exception is None, done.exception
    return done.return_value, done.stdout


def judged(app):
    return judge(scan_app(app, load_rules()), load_rules())


@pytest.fixture
def baseline(app, tmp_path):
    path = tmp_path / "last.json"
    path.write_text(run("scan", app, "--format", "json")[1])
    return path


@pytest.mark.peer
def test_documents_follow_the_published_schema(app, later, baseline):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    commands = (
        ("scan", app),
        ("scan", later, "--baseline", baseline),
        ("rules", app),
        ("rules",),
    )
    for words in commands:
        _, output = run(*words, "--format", "json")
        jsonschema.validate(json.loads(output), SCHEMA)


@pytest.mark.peer
def test_findings_of_two_builds_are_compared(app, later, baseline):
    comparison = compare(judged(later).findings, baseline)
    assert comparison.changes == {
        "undeclared:Demo:DiskSpace": Change.NEW,
        "undeclared:Demo:SystemBootTime": Change.MORE,
        "undeclared:Lottie:FileTimestamp": Change.REPEATED,
        "sdk-manifest:Lottie:PrivacyInfo.xcprivacy": Change.REPEATED,
    }
    (added,) = comparison.added["undeclared:Demo:SystemBootTime"]
    assert added.site.function == "again"
    assert [each.identity for each in comparison.gone] == [
        "usage-missing:Demo:NSContactsUsageDescription"
    ]
    assert set(compare(judged(app).findings, baseline).changes.values()) == {Change.REPEATED}


@pytest.mark.peer
def test_only_news_fail_a_build_that_has_a_baseline(app, later, baseline):
    assert run("scan", app)[0] == 1
    assert run("scan", app, "--baseline", baseline)[0] == 0
    status, output = run("scan", later, "--baseline", baseline)
    assert status == 1
    assert "fault (new): Demo calls statfs" in output
    assert "fault (1 new call): Demo calls mach_absolute_time" in output
    assert "fault (repeated): Lottie calls stat" in output
    assert "gone: ABAddressBookCopyArrayOfAllPeople" in output


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"findings": [3]}', "[" * 100_000])
def test_what_is_no_report_is_refused(tmp_path, text):
    path = tmp_path / "last.json"
    path.write_text(text)
    with pytest.raises(FormatError, match="not a report"):
        compare(judged(tmp_path).findings, path)
    with pytest.raises(FileAccessError, match="earlier report"):
        compare(judged(tmp_path).findings, tmp_path / "missing.json")


def test_an_audit_that_did_not_happen_is_no_finding(tmp_path):
    assert run("scan", tmp_path / "missing.app")[0] == 2
    assert run("scan", tmp_path)[0] == 0
    assert run("scan", tmp_path, "--rules", tmp_path / "missing.toml")[0] == 2
    assert run("scan", tmp_path, "--baseline", tmp_path / "missing.json")[0] == 2
    (tmp_path / "broken").write_bytes(bytes.fromhex("cffaedfe") + b"\xff" * 60)
    assert run("scan", tmp_path)[0] == 2


@pytest.mark.peer
def test_the_manifest_that_would_be_true(app):
    (app / "PrivacyInfo.xcprivacy").write_bytes(
        declaring(
            "DiskSpace", NSPrivacyCollectedDataTypes=[{"NSPrivacyCollectedDataTypeLinked": True}]
        )
    )
    status, output = run("scan", app, "--fix-manifest")
    assert status == 1
    assert "<!-- choose among 35F9.1: elapsed time" in output
    manifest = parse_manifest(output.encode(), "x")
    assert manifest.reasons == {"SystemBootTime": ()}
    assert manifest.root["NSPrivacyCollectedDataTypes"] == [
        {"NSPrivacyCollectedDataTypeLinked": True}
    ]


@pytest.mark.peer
def test_rows_are_a_table(app):
    _, output = run("scan", app, "--format", "csv", "--lang", "zh")
    rows = list(csv.DictReader(io.StringIO(output)))
    assert {(row["library"], row["watch"], row["category"]) for row in rows} == {
        ("Demo", "mach_absolute_time", "系统启动时间"),
        ("Demo", "ABAddressBookCopyArrayOfAllPeople", "通讯录"),
        ("Lottie", "stat", "文件时间戳"),
    }


def sample_page(app, path, **options):
    path.write_text(html_page(judged(app), **options), encoding="utf-8")
    return path


@pytest.mark.peer
def test_the_page_has_a_cell_for_each_library_and_kind_of_data(app, tmp_path):
    page = sample_page(app, tmp_path / "page.html").read_text()
    links = re.findall(r'href="#(cell-\d+-\d+)"', page)
    assert len(links) == 3
    assert all(f'id="{link}"' in page for link in links)
    assert "<script src" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "系统启动时间" in html_page(judged(app), language="zh")


@pytest.mark.peer
def test_names_in_a_page_are_text(tmp_path, images):
    app = assemble(images, tmp_path / "<img src=x>.app")
    page = html_page(judged(app))
    assert "<img" not in page


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if chromium_program() is None:
        pytest.skip("no Chromium (Debian: chromium)")
    with chromium_page(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.mark.peer
def test_the_page_is_used_by_keyboard(browser, app, tmp_path):
    """The matrix is walked with arrows, a cell opens its call sites, the search filters rows."""
    path = sample_page(app, tmp_path / "page.html")
    browser.open(path)
    assert browser.value("document.querySelectorAll('[data-site]:not([hidden])').length") == 6
    browser.value("document.querySelector('.matrix a').focus()")
    browser.press("ArrowRight")
    browser.press("Enter")
    browser.wait_for("location.hash")
    opened = "document.querySelector('details.cell[open] summary')?.textContent"
    assert browser.wait_for(opened).startswith("Demo, ")
    browser.press("/", "/")
    browser.type("stat")
    browser.wait_for("document.getElementById('count').textContent")
    assert browser.value("document.getElementById('count').textContent") == "2 of 6 rows"
    browser.press("Escape")
    assert browser.value("document.getElementById('count').textContent") == ""
    assert browser.complaints == []
    assert set(browser.requests) == {path.as_uri()}
