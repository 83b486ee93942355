"""Privacy manifests: what they declare, and what makes them invalid."""

import plistlib

import pytest

from machtrace.audit.scan.manifest import REASONS, parse_manifest, true_manifest

PREFIX = "NSPrivacyAccessedAPICategory"


def manifest(*rows, **root):
    entries = [
        {"NSPrivacyAccessedAPIType": name, "NSPrivacyAccessedAPITypeReasons": codes}
        for name, codes in rows
    ]
    data = plistlib.dumps({"NSPrivacyAccessedAPITypes": entries, **root})
    return parse_manifest(data, "PrivacyInfo.xcprivacy")


@pytest.mark.parametrize(("category", "codes"), REASONS.items())
def test_reasons_are_read_by_category(category, codes):
    found = manifest((f"{PREFIX}{category}", list(codes)))
    assert found.reasons == {category: tuple(codes)}
    assert not found.faults


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ((f"{PREFIX}DiskSpace", []), "no reason"),
        ((f"{PREFIX}DiskSpace", ["CA92.1"]), "unknown reason CA92.1"),
        ((f"{PREFIX}Disk", ["E174.1"]), "unknown category"),
        (("DiskSpace", ["E174.1"]), "unknown category DiskSpace"),
    ],
)
def test_a_wrong_entry_is_a_fault(row, fault):
    assert fault in " ".join(manifest(row).faults)


@pytest.mark.parametrize(
    ("root", "fault"),
    [
        ({"NSPrivacyTracking": "yes"}, "no bool"),
        ({"NSPrivacyTracking": True}, "without NSPrivacyTrackingDomains"),
        ({"NSPrivacyTrackings": True}, "unknown key"),
        ({"NSPrivacyAccessedAPITypes": {}}, "no list"),
        ({"NSPrivacyAccessedAPITypes": ["x"]}, "no dictionary"),
        ({"NSPrivacyAccessedAPITypes": [{}]}, "without NSPrivacyAccessedAPIType"),
    ],
)
def test_a_wrong_value_is_a_fault(root, fault):
    assert fault in " ".join(parse_manifest(plistlib.dumps(root), "x").faults)


@pytest.mark.parametrize("data", [b"", b"<plist>", b"bplist00" + b"\xff" * 40, b"{}", b"\0" * 99])
def test_bytes_that_are_no_property_list_are_a_fault(data):
    assert parse_manifest(data, "x").faults


def test_every_truncation_of_a_binary_list_has_one_outcome():
    entries = [{"NSPrivacyAccessedAPIType": f"{PREFIX}DiskSpace"}]
    data = plistlib.dumps({"NSPrivacyAccessedAPITypes": entries}, fmt=plistlib.FMT_BINARY)
    for end in range(len(data)):
        parse_manifest(data[:end], "x")
        parse_manifest(data[:end] + bytes([data[end] ^ 0x55]) + data[end + 1 :], "x")


def test_the_true_manifest_keeps_what_was_declared_and_chooses_no_reason():
    existing = manifest((f"{PREFIX}DiskSpace", ["E174.1"]), (f"{PREFIX}UserDefaults", ["CA92.1"]))
    text = true_manifest(existing, ["DiskSpace", "FileTimestamp"])
    found = parse_manifest(text, "x")
    assert found.reasons == {"DiskSpace": ("E174.1",), "FileTimestamp": ()}
    assert len(found.faults) == 1
