"""``dyld_all_image_infos``, from bytes that a compiler laid out by Apple's header."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from machtrace.errors import CoreFileError, MemoryReadError
from machtrace.formats.macho.dyld import change_time, read_dyld_process, shared_cache
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion, RegionMemory

AT = Avma(0x1_0000_0000)
ARRAY = AT + 0x200
UUIDS = AT + 0x300
PATHS = AT + 0x400
CACHE = UUID("4d6dd0a4-2a4c-3b0e-8d1c-0e6b3b3b3b3b")
IMAGE = UUID("11111111-2222-3333-4444-555555555555")
FIELDS = {
    "version": 0,
    "infoArrayCount": 4,
    "infoArray": 8,
    "dyldImageLoadAddress": 32,
    "uuidArrayCount": 88,
    "uuidArray": 96,
    "sharedCacheUUID": 160,
    "sharedCacheBaseAddress": 176,
    "infoArrayChangeTimestamp": 184,
    "dyldPath": 192,
}


def infos(version: int = 17, *, uuids: int = 1, uuid_array: int = UUIDS) -> bytearray:
    """Build the structure, its two arrays and the paths."""
    data = bytearray(0x500)
    struct.pack_into("<2IQ", data, 0, version, 1, ARRAY)
    struct.pack_into("<Q", data, FIELDS["dyldImageLoadAddress"], 0x7000)
    struct.pack_into("<2Q", data, FIELDS["uuidArrayCount"], uuids, uuid_array)
    data[FIELDS["sharedCacheUUID"] : FIELDS["sharedCacheUUID"] + 16] = CACHE.bytes
    struct.pack_into("<3Q", data, FIELDS["sharedCacheBaseAddress"], 0x1_8123_4000, 99, PATHS)
    struct.pack_into("<3Q", data, ARRAY - AT, 0x4000, PATHS + 0x20, 0)
    struct.pack_into("<Q16s", data, UUIDS - AT, 0x4000, IMAGE.bytes)
    data[PATHS - AT : PATHS - AT + 14] = b"/usr/lib/dyld\0"
    data[PATHS - AT + 0x20 : PATHS - AT + 0x2B] = b"/bin/Demo1\0"
    return data


def memory(data: bytes | bytearray) -> RegionMemory:
    """Place it in a memory as a process has it."""
    return RegionMemory([MemoryRegion(AT, bytes(data))])


def test_all_fields_of_dyld_are_read() -> None:
    actual = read_dyld_process(memory(infos()), AT, source="a test")
    assert [(image.load_address, image.path) for image in actual.images.images] == [
        (0x4000, "/bin/Demo1")
    ]
    assert actual.images.dyld == 0x7000
    assert actual.uuids == {0x4000: IMAGE}
    assert actual.shared_cache is not None
    assert (actual.shared_cache.uuid, actual.shared_cache.base) == (CACHE, 0x1_8123_4000)
    assert actual.changed_at == 99 == change_time(memory(infos()), AT)
    assert actual.dyld_path == "/usr/lib/dyld"


@pytest.mark.parametrize(
    ("version", "stated"), [(7, set()), (8, {"uuids"}), (14, {"uuids"}), (15, {"uuids", "path"})]
)
def test_fields_newer_than_the_version_are_not_read(version: int, stated: set[str]) -> None:
    data = infos(version)
    if "path" not in stated:
        data = data[:176] + b"\xee" * 24 + data[200:]
    found = read_dyld_process(memory(data), AT, source="a test")
    assert bool(found.uuids) == ("uuids" in stated)
    assert bool(found.dyld_path) == ("path" in stated) == (found.changed_at is not None)


def test_a_process_without_a_shared_cache() -> None:
    data = infos()
    data[160:176] = bytes(16)
    found = shared_cache(memory(data), AT)
    assert found is not None
    assert found.uuid is None
    data[176:184] = bytes(8)
    assert shared_cache(memory(data), AT) is None
    assert read_dyld_process(memory(data), AT, source="a test").shared_cache is None


@pytest.mark.parametrize("count", [1 << 17, (1 << 64) - 1, 1 << 12])
def test_an_impossible_count_of_uuids_leaves_the_images(count: int) -> None:
    """UUIDs are in the images' headers, too."""
    found = read_dyld_process(memory(infos(uuids=count)), AT, source="a test")
    assert found.uuids == {}
    assert len(found.images.images) == 1


def test_a_list_that_is_being_changed_is_reported() -> None:
    """The pointer is null at that moment."""
    data = infos()
    data[8:16] = bytes(8)
    with pytest.raises(CoreFileError, match="changing"):
        read_dyld_process(memory(data), AT, source="a test")


def test_a_truncated_structure_is_unreadable_memory() -> None:
    with pytest.raises(MemoryReadError):
        read_dyld_process(memory(infos()[:24]), AT, source="a test")


@pytest.mark.peer
@pytest.mark.parametrize("triple", ["aarch64-apple-macos13.0", "x86_64-apple-macos13.0"])
def test_offsets_equal_those_of_apples_header(triple: str, tmp_path: Path) -> None:
    """A compiler asserts them."""
    ziglang = pytest.importorskip("ziglang", reason="ziglang carries Apple's headers")
    root = Path(ziglang.__file__).parent / "lib"
    lines = ["#include <stddef.h>", "#include <mach-o/dyld_images.h>"]
    lines += [
        f'_Static_assert(offsetof(struct dyld_all_image_infos, {name}) == {place}, "{name}");'
        for name, place in FIELDS.items()
    ]
    source = tmp_path / "places.c"
    source.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "ziglang", "clang", "-target", triple, "-std=c11"]
    command += [f"-isystem{root / 'include'}", f"-isystem{root / 'libc/include/any-darwin-any'}"]
    done = subprocess.run(
        [*command, "-fsyntax-only", str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
