"""The images that reports list, in the forms that reports have."""

import json
from uuid import UUID

import pytest

from machtrace.errors import FormatError
from machtrace.model.image import BuildId
from machtrace.reports.image_lists import listed_images

ARM = UUID("82d13d98-219e-3040-b62a-07a297007a7c")
LONG, SHORT = str(ARM).upper(), ARM.hex


@pytest.mark.parametrize(
    ("label", "identifier", "path", "expected"),
    [
        ("App arm64 ", SHORT, "/x/App.app/App", ("App", "arm64")),
        ("+My App armv7 ", SHORT, "/x/My App", ("My App", "armv7")),
        ("+com.example.app (1.0 - 1)", LONG, "/x/App", ("com.example.app", None)),
        (" libobjc.A.dylib (818.2)", LONG, "/usr/lib/libobjc.A.dylib", ("libobjc.A.dylib", None)),
        ("libx.dylib", LONG, "/x/libx.dylib", ("libx.dylib", None)),
    ],
)
@pytest.mark.parametrize(
    ("places", "address", "size"),
    [
        ("       0x102230000 -        0x102237fff ", 0x102230000, 0x8000),
        ("0x5f000 - 0xa3fff ", 0x5F000, 0x45000),
        ("*0xffffff8000200000 - ???  ", 0xFFFFFF8000200000, None),
    ],
)
def test_lines_of_text_reports(label, identifier, path, expected, places, address, size):
    """Texts of iOS and macOS crash reports, samples and spindumps."""
    (image,) = listed_images(f"Binary Images:\n{places}{label} <{identifier}> {path}\n", "x")

    assert (ARM, path, *expected) == (image.identifier, image.path, image.name, image.arch)
    assert (address, size) == (image.load_address, image.size)


def test_an_ips_file():
    """Two JSON documents; the shared cache has a UUID and is no image."""
    payload = {
        "usedImages": [
            {"uuid": LONG.lower(), "path": "/x/App", "name": "App", "arch": "arm64", "base": 4096,
             "size": 16384},
            {"uuid": "00000000-0000-0000-0000-000000000000", "base": 0, "size": 0},
        ],
        "sharedCache": {"base": 1, "size": 2, "uuid": "a2f09e98-4269-3d38-ad63-40d6e17692fd"},
    }  # fmt: skip
    text = '{"slice_uuid":"11111111-1111-1111-1111-111111111111"}\n' + json.dumps(payload, indent=1)
    (image,) = listed_images(text, "x.ips")

    assert (
        image.identifier, image.name, image.path, image.arch, image.load_address, image.size,
    ) == (ARM, "App", "/x/App", "arm64", 4096, 16384)  # fmt: skip


def test_kscrash_and_metrickit():
    """``binary_images`` with paths as names; ``binaryUUID`` anywhere in a tree of frames."""
    kscrash = {"binary_images": [{"uuid": LONG, "name": "/x/App", "image_addr": 4096}]}
    metrickit = {"callStacks": [{"frames": [{"binaryUUID": LONG, "subFrames": [
        {"binaryUUID": LONG, "binaryName": "App"}]}]}]}  # fmt: skip

    for document in (kscrash, metrickit):
        (image,) = listed_images(json.dumps(document), "x")
        assert (image.identifier, image.name) == (ARM, "App")


@pytest.mark.parametrize("length", [8, 20, 32])
def test_build_ids(length):
    """Lengths of lld's fast ones, SHA-1 and SHA-256; zeros identify nothing."""
    value = BuildId(bytes(range(1, length + 1)))
    line = f"0x1000 - 0x1fff app x86_64  <{value}> /x/app\n"
    entry = {"base": 4096, "size": 4096, "arch": "x86_64", "path": "/x/app", "name": "app"}
    none = "00000000-0000-0000-0000-000000000000"
    ips = "{}\n" + json.dumps({"usedImages": [{**entry, "uuid": none, "buildId": str(value)}]})
    own = {"images": [{"path": "/x/app", "uuid": str(value), "load_address": 4096}]}

    for text in (line, ips, json.dumps(own), line + ips.partition("\n")[2]):
        (image,) = listed_images(text, "x")
        assert (value, "app", "/x/app", 4096) == (
            image.identifier, image.name, image.path, image.load_address,
        )  # fmt: skip
    with pytest.raises(FormatError, match="no list of binary images"):
        listed_images(line.replace(str(value), "00" * length), "x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        '{"a":' * 100_000,
        "{}",
        '{"usedImages": [{"uuid": 3, "base": "x"}]}',
        f"0x1 - 0x2 x <{SHORT[:-1]}> y",
        f"0x1 - 0x2 x <{SHORT}{SHORT.upper()}> y",
        f"0x1 - 0x2 x <{'ab' * 65}> y",
        "<" * 100_000,
        "0x1 - 0x2 " + " " * 100_000 + "<",
        f"0x1 - 0x2 x <{'-' * 32}> y",
    ],
)
def test_a_report_without_images_is_an_error(text):
    """The time is limited for any text."""
    with pytest.raises(FormatError, match="no list of binary images"):
        listed_images(text, "x")
