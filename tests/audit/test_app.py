"""A whole app: folder or archive, manifests of SDKs, and what is found."""

import json
import plistlib
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from machtrace.audit.findings import FindingKind, judge
from machtrace.audit.output.sarif import sarif_document
from machtrace.audit.policies import Severity
from machtrace.audit.rules import load_rules
from machtrace.audit.scan.app import scan_app
from machtrace.audit.scan.bundles import bundle_of
from machtrace.cli.audit.commands import audit
from machtrace.errors import FileAccessError, FormatError
from tests.audit.apps import assemble, declaring


@pytest.fixture
def app(images, tmp_path):
    """An app with an SDK; nothing is declared."""
    return assemble(images, tmp_path / "Demo.app")


def found(app: Path) -> set[str]:
    report = judge(scan_app(app, load_rules()), load_rules())
    assert not report.app.problems
    return {finding.identity for finding in report.findings}


@pytest.mark.peer
def test_what_is_called_and_not_declared_is_found(app):
    assert found(app) == {
        "undeclared:Demo:SystemBootTime",
        "undeclared:Lottie:FileTimestamp",
        "usage-missing:Demo:NSContactsUsageDescription",
        "sdk-manifest:Lottie:PrivacyInfo.xcprivacy",
    }


@pytest.mark.peer
def test_a_manifest_declares_for_its_own_bundle_only(app):
    (app / "PrivacyInfo.xcprivacy").write_bytes(declaring("SystemBootTime", "FileTimestamp"))
    framework = app / "Frameworks" / "Lottie.framework"
    (framework / "PrivacyInfo.xcprivacy").write_bytes(declaring("SystemBootTime"))
    information = {"NSContactsUsageDescription": "to find friends"}
    (app / "Info.plist").write_bytes(plistlib.dumps(information))
    assert found(app) == {
        "undeclared:Lottie:FileTimestamp",
        "declared-in-vain:Lottie:SystemBootTime",
        "declared-in-vain:Demo:FileTimestamp",
    }


@pytest.mark.peer
def test_a_resource_bundle_declares_for_the_app_around_it(app):
    resources = app / "Static.bundle"
    resources.mkdir()
    (resources / "PrivacyInfo.xcprivacy").write_bytes(declaring("SystemBootTime"))
    assert "undeclared:Demo:SystemBootTime" not in found(app)


@pytest.mark.peer
def test_an_invalid_manifest_is_found(app):
    (app / "PrivacyInfo.xcprivacy").write_bytes(declaring("SystemBootTime", NSPrivacyTracking=3))
    assert "invalid-manifest:Demo:PrivacyInfo.xcprivacy" in found(app)


@pytest.mark.peer
def test_an_archive_is_read_as_the_folder_in_it(app, tmp_path):
    archive = tmp_path / "Demo.ipa"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        for path in app.rglob("*"):
            writer.write(path, Path("Payload", path.relative_to(app.parent)))
    assert found(archive) == found(app)


@pytest.mark.peer
def test_results_in_sarif_refer_to_listed_rules(app):
    report = judge(scan_app(app, load_rules()), load_rules())
    (run,) = sarif_document(report)["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rules[result["ruleIndex"]]["id"] for result in run["results"]] == [
        result["ruleId"] for result in run["results"]
    ]
    identities = {result["partialFingerprints"]["machtraceFinding/v1"] for result in run["results"]}
    assert len(identities) == len(run["results"]) == 4


@pytest.mark.peer
def test_the_command_states_what_it_found(app):
    done = CliRunner().invoke(audit, ["scan", str(app), "--format", "json"])
    document = json.loads(done.output)
    assert {finding["kind"] for finding in document["findings"]} <= {
        kind.value for kind in FindingKind
    }
    assert document["images"][0]["sites"][0]["watch"]


def test_faults_come_first(tmp_path):
    severities = list(Severity)
    assert severities[0] is Severity.FAULT
    assert judge(scan_app(tmp_path, load_rules()), load_rules()).findings == ()


@pytest.mark.parametrize(
    ("path", "bundle"),
    [
        ("Demo.app/Demo", "Demo.app"),
        ("Demo.app/Frameworks/A.framework/A", "Demo.app/Frameworks/A.framework"),
        ("Demo.app/en.lproj/Info.plist", "Demo.app"),
        ("Demo", ""),
        ("x/y.dylib", ""),
    ],
)
def test_the_innermost_bundle_counts(path, bundle):
    assert bundle_of(path) == bundle


def test_what_is_no_app_is_refused(tmp_path):
    with pytest.raises(FileAccessError, match="No such file"):
        scan_app(tmp_path / "missing", load_rules())
    text = tmp_path / "text.txt"
    text.write_text("hello, this is no app")
    with pytest.raises(FormatError, match="neither an app"):
        scan_app(text, load_rules())


@pytest.mark.peer
def test_every_truncation_of_an_image_has_one_outcome(images, tmp_path):
    data = (images / "App").read_bytes()
    for end in range(0, len(data), max(1, len(data) // 60)):
        root = tmp_path / f"{end}.app"
        root.mkdir()
        (root / "App").write_bytes(data[:end])
        judge(scan_app(root, load_rules()), load_rules())


@pytest.mark.parametrize("content", [b"", b"garbage", b"<plist", b"bplist00" + bytes(40)])
@pytest.mark.parametrize("is_archive", [False, True])
def test_a_manifest_that_cannot_be_read_is_invalid(tmp_path, content, is_archive):
    bundle = tmp_path / "Demo.app"
    bundle.mkdir()
    (bundle / "PrivacyInfo.xcprivacy").write_bytes(content)
    path = bundle
    if is_archive:
        path = tmp_path / "Demo.ipa"
        with zipfile.ZipFile(path, "w") as writer:
            writer.writestr("Payload/Demo.app/PrivacyInfo.xcprivacy", content)
    (identity,) = found(path)
    assert identity.startswith("invalid-manifest:Demo")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("Payload/Demo.app/../../../x", "../x", "/x", "a\\..\\x"), "leads out of the archive"),
        (("Payload/Demo.app/x", "Payload//Demo.app/./x"), "several files of this path"),
    ],
)
def test_paths_that_archives_must_not_have_are_problems(tmp_path, names, text):
    image = bytes.fromhex("cffaedfe") + bytes(28)
    with zipfile.ZipFile(tmp_path / "a.ipa", "w") as writer:
        for name in names:
            writer.writestr(name, image)
    report = scan_app(tmp_path / "a.ipa", load_rules())
    expected = len(names) if "leads" in text else 1
    assert [text in str(problem) for problem in report.problems].count(True) == expected
