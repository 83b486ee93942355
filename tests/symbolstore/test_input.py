"""The input of a symbol store: files that are not images, links, pipes, damaged files."""

import os
import random
from uuid import UUID

import pytest

from machtrace.formats.macho.header import FileType
from machtrace.images.store_layout import FileKind
from machtrace.symbolstore.contained_images import SkipReason
from tests.support.writers.macho import ThinFile
from tests.support.writers.symbol_files import (
    APP,
    DSYM,
    INTEL_APP,
    add,
    everything_in,
    fat,
    reasons,
)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"!<arch>\n" + bytes(60), SkipReason.STATIC_LIBRARY),
        (fat(b"!<arch>\n" + bytes(60), b"!<arch>\n" + bytes(60)), SkipReason.STATIC_LIBRARY),
        (ThinFile(filetype=FileType.OBJECT).build(), SkipReason.OBJECT_FILE),
        (ThinFile(filetype=FileType.CORE).build(), SkipReason.CORE),
        (ThinFile(filetype=FileType.DYLIB_STUB).build(), SkipReason.STUB),
        (ThinFile(uuid=UUID(int=0)).build(), SkipReason.NO_IDENTIFIER),
        (APP[:-1], SkipReason.MALFORMED),
        (APP[:50], SkipReason.MALFORMED),
        (b"\x7fELF", SkipReason.MALFORMED),
        (b"\xca\xfe\xba\xbe\0\0\0\x34" + bytes(60), SkipReason.NOT_AN_IMAGE),  # a Java class
        (b"#!/bin/sh\n", SkipReason.NOT_AN_IMAGE),
        (b"", SkipReason.NOT_AN_IMAGE),
    ],
)
def test_files_that_are_not_images_are_reported(store, tmp_path, data, reason):
    """Nothing is stored: a truncated file would prevent storing the whole one."""
    (tmp_path / "x").write_bytes(data)
    stored, skipped = add(store, tmp_path / "x")

    assert ([], [reason]) == (stored, reasons(skipped))


def test_links_do_not_lead_out_of_a_folder(store, tmp_path):
    """A link within it is skipped, its target is found directly; the given folder may be a link."""
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    tree.mkdir()
    outside.mkdir()
    (outside / "App").write_bytes(APP)
    (tree / "dSYM").write_bytes(DSYM)
    (tree / "loop").symlink_to(tree)
    (tree / "again").symlink_to("dSYM")
    (tree / "out").symlink_to(outside / "App")
    (tree / "folder").symlink_to(outside)
    named = tmp_path / "named"
    named.symlink_to(tree)
    stored, skipped = add(store, named)

    assert [one.kind for one in stored] == [FileKind.DEBUGINFO]
    assert reasons(skipped) == [SkipReason.LINK, SkipReason.LINK]
    stored, _ = add(store, named, follow_links=True)
    assert {FileKind.EXECUTABLE, FileKind.DEBUGINFO} == {one.kind for one in stored}


def test_pipes_and_missing_files_do_not_block(store, tmp_path):
    """A pipe in a folder is skipped; given by its path it is refused, like a missing file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "App").write_bytes(APP)

    assert len(add(store, tmp_path)[0]) == 1
    _, skipped = add(store, tmp_path / "pipe", tmp_path / "nowhere")
    assert reasons(skipped) == [SkipReason.UNREADABLE] * 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_does_not_stop_the_others(store, tmp_path):
    """It is reported."""
    (tmp_path / "a").write_bytes(DSYM)
    (tmp_path / "a").chmod(0)
    (tmp_path / "b").write_bytes(APP)
    stored, skipped = add(store, tmp_path)

    assert len(stored) == 1
    assert reasons(skipped) == [SkipReason.UNREADABLE]


def test_mutated_files_are_stored_or_skipped(store, tmp_path):
    """An image of any bytes is stored under its own path, or skipped; no error."""
    whole = fat(APP, INTEL_APP)
    path = tmp_path / "App"
    chosen = random.Random(17)  # noqa: S311 - no secret
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chosen.randrange(1, 6)):
            data[chosen.randrange(min(len(data), 0x1600))] = chosen.randrange(256)
        path.write_bytes(data[: chosen.randrange(len(data))] if chosen.random() < 0.2 else data)
        add(store, path)
    for file in store.files():
        assert file.path.parent.parent.parent == store.root
    assert not [name for name in everything_in(store.root) if "unfinished" in name]
