"""Adding archives to a symbol store: nested ones, damaged ones, bombs."""

import random
import struct
import zipfile

import pytest

from machtrace.images.store_layout import FileKind
from machtrace.symbolstore.archive import UnpackLimits
from machtrace.symbolstore.contained_images import SkipReason
from tests.support.writers.symbol_files import (
    APP,
    ARM,
    DSYM,
    add,
    everything_in,
    names_in,
    reasons,
    zipped,
)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_images_in_nested_archives_are_added(store, tmp_path, method):
    """Members may have any name; no temporary file is left."""
    inner = zipped({"App.app.dSYM/Contents/Resources/DWARF/App": DSYM}, compression=method)
    (tmp_path / "App.ipa").write_bytes(
        zipped(
            {
                "Payload/App.app/App": APP,
                "Payload/App.app/Info.plist": b"<plist/>",
                "dSYM.zip": inner,
            },
            compression=method,
        )
    )
    stored, skipped = add(store, tmp_path / "App.ipa")

    assert [file.identifier for file in stored] == [ARM, ARM]
    assert stored[0].source.endswith("App.ipa: Payload/App.app/App")
    assert skipped == []
    assert store.find(ARM, None, FileKind.EXECUTABLE).read_bytes() == APP
    assert store.find(ARM).read_bytes() == DSYM
    assert sorted({file.name for file in store.files()}) == ["App"]
    assert not [name for name in everything_in(store.root) if "unfinished" in name]


def test_names_in_archives_are_never_paths(store, tmp_path):
    """A member with a path out of the folder is stored under its UUID like any other."""
    (tmp_path / "a.zip").write_bytes(zipped({"../../../evil": APP, "/etc/evil2": DSYM}))
    stored, _ = add(store, tmp_path / "a.zip")

    assert len(stored) == 2
    assert not (tmp_path.parent / "evil").exists()
    assert {"store", "a.zip"} == names_in(tmp_path)


def test_the_nesting_of_archives_is_limited(store, tmp_path):
    """A user can raise the limit."""
    data = APP
    for _ in range(3):
        data = zipped({"x": data})
    (tmp_path / "deep.zip").write_bytes(data)

    _, skipped = add(store, tmp_path / "deep.zip", limits=UnpackLimits(depth=2))
    assert reasons(skipped) == [SkipReason.TOO_DEEP]
    stored, _ = add(store, tmp_path / "deep.zip", limits=UnpackLimits(depth=3))
    assert [one.identifier for one in stored] == [ARM]


@pytest.mark.parametrize(
    "limits",
    [
        UnpackLimits(member_bytes=1000),
        UnpackLimits(total_bytes=1000),
        UnpackLimits(directory_bytes=10),
    ],
)
def test_members_beyond_the_limits_are_reported_and_skipped(store, tmp_path, limits):
    """Nothing of them was written."""
    (tmp_path / "a.zip").write_bytes(zipped({"App": APP}))
    stored, skipped = add(store, tmp_path / "a.zip", limits=limits)

    assert stored == []
    assert reasons(skipped) == [SkipReason.TOO_LARGE]
    assert not store.root.exists() or everything_in(store.root) == []


def test_a_zip_bomb_is_refused(store, tmp_path):
    """A member of 100 MB in 100 KB, that begins like a Mach-O."""
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", APP[:4096] + bytes(100 << 20))
    stored, skipped = add(store, tmp_path / "bomb.zip")

    assert stored == []
    assert reasons(skipped) == [SkipReason.TOO_LARGE]


@pytest.mark.parametrize("declared", [len(APP) - 100, len(APP) + 100])
def test_a_member_with_a_false_size_is_malformed(store, tmp_path, declared):
    """The next one is stored."""
    data = bytearray(zipped({"App": APP, "dSYM": DSYM}))
    at = data.find(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", declared)
    (tmp_path / "a.zip").write_bytes(data)
    stored, skipped = add(store, tmp_path / "a.zip")

    assert [one.kind for one in stored] == [FileKind.DEBUGINFO]
    assert reasons(skipped) == [SkipReason.MALFORMED]


def test_damaged_archives_give_their_images_and_one_line(store, tmp_path):
    """Truncated or altered at many offsets."""
    whole = zipped({"App": APP, "x/dSYM.zip": zipped({"d": DSYM})}, compression=8)
    path = tmp_path / "a.zip"
    for at in range(0, len(whole), 41):
        path.write_bytes(whole[:at])
        add(store, path)
        path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        add(store, path)
    for file in store.files():
        assert file.path.read_bytes() in (APP, DSYM)


@pytest.mark.parametrize("seed", range(3))
def test_mutated_archives_give_images_or_problems(store, tmp_path, seed):
    """A few bytes changed, often in the list of members; names may be empty, sizes anything."""
    chosen = random.Random(seed)  # noqa: S311 - no secret
    members = {"App": APP, "x/dSYM.zip": zipped({"d": DSYM})}
    whole = [zipped(members, compression=method) for method in (0, 8, 12)]
    path = tmp_path / "a.zip"
    for _ in range(150):
        data = bytearray(chosen.choice(whole))
        start = chosen.choice((0, len(data) - 300))
        for _ in range(chosen.randrange(1, 10)):
            data[chosen.randrange(start, len(data))] = chosen.choice((0, 1, 127, 255))
        path.write_bytes(data)
        add(store, path)
    for file in store.files():
        assert file.path.read_bytes() in (APP, DSYM)
    assert not [name for name in everything_in(store.root) if "unfinished" in name]


def test_an_encrypted_member_is_reported(store, tmp_path):
    """By the flag alone."""
    data = bytearray(zipped({"App": APP}))
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(magic)
        data[at + flags] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    _, skipped = add(store, tmp_path / "a.zip")

    assert reasons(skipped) == [SkipReason.ENCRYPTED]
