"""One unwinder for many snapshots: its cache, and columns that equal objects."""

import struct
from dataclasses import replace

import numpy as np
import pytest

import machtrace as mt
from machtrace.model.arch import Arch
from machtrace.model.image import ImageList
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.stack import AddressKind, FrameTrust, Walk
from machtrace.unwinder.thread_walker import KINDS, TRUSTS, PythonWalker
from tests.support.writers.processes import synthetic_process
from tests.support.writers.synthetic_image import TEXT_OFFSET


@pytest.fixture(params=["c", "python"])
def walked_by(request, monkeypatch):
    """Walk with the extension, if it is built, and without."""
    if request.param == "c":
        pytest.importorskip("machtrace._native._walk", reason="the extensions are not built")
    else:
        monkeypatch.setattr(
            "machtrace.unwinder.unwinder.thread_walker",
            lambda rules, _arch, mask: PythonWalker(rules, mask),
        )


def plain(walked):
    """Return a walk without its thread."""
    return Walk(
        addresses=walked.addresses,
        stop=walked.stop,
        gap=walked.gap,
        physical_remainder=walked.physical_remainder,
    )


def cut(snapshot, size):
    """Return the same snapshot, with ``size`` bytes of each stack."""
    threads = tuple(
        replace(thread, stack=replace(thread.stack, data=thread.stack.data[:size]))
        for thread in snapshot.threads
    )
    return replace(snapshot, threads=threads)


@pytest.mark.usefixtures("walked_by")
@pytest.mark.parametrize("limit", [6, 512])
def test_columns_equal_objects(limit):
    """Several processes in order; whole stacks and truncated ones."""
    arm = synthetic_process(Arch.ARM64, threads=4, depth=30).snapshot
    x86 = synthetic_process(Arch.X86_64, threads=3, depth=9, seed=1).snapshot
    snapshots = (arm, x86, cut(arm, 600), x86, cut(x86, 300))
    unwinder = mt.Unwinder()

    columns = unwinder.columns(snapshots, limit=limit)

    walks = [plain(one) for snapshot in snapshots for one in mt.unwind(snapshot, limit=limit)]
    assert walks == list(columns)
    assert len(walks) == len(columns) == 17
    frames = [frame for walked in walks for frame in walked.addresses]
    assert [frame.address for frame in frames] == columns.addresses.tolist()
    assert [frame.lookup for frame in frames] == columns.lookups.tolist()
    assert [frame.trust for frame in frames] == [TRUSTS[code] for code in columns.trusts]
    assert [frame.kind for frame in frames] == [KINDS[code] for code in columns.kinds]
    again = unwinder.columns(snapshots, limit=limit)
    assert np.array_equal(again.addresses, columns.addresses)
    with pytest.raises(IndexError):
        columns.walk(17)


@pytest.mark.usefixtures("walked_by")
def test_no_snapshots_give_empty_columns():
    columns = mt.Unwinder().columns(())

    assert 0 == len(columns) == len(columns.addresses)
    assert columns.starts.tolist() == [0]


@pytest.mark.usefixtures("walked_by")
def test_swift_continuations_are_in_columns():
    """They are separate, as in a walk."""
    snapshot = synthetic_process(Arch.ARM64, threads=2, depth=6).snapshot
    first = snapshot.threads[0]
    data = bytearray(first.stack.data)
    fp = (first.registers.fp or 0) - first.stack.start
    saved = int.from_bytes(data[fp + 32 : fp + 40], "little")
    struct.pack_into("<Q", data, fp + 32, saved | 1 << 60)
    struct.pack_into("<Q", data, fp + 24, first.stack.start + 8)  # its context
    struct.pack_into("<2Q", data, 8, 0, 0x1_2345_6780)  # no parent; the address to resume at
    marked = replace(first, stack=replace(first.stack, data=bytes(data)))
    snapshot = replace(snapshot, threads=(marked, snapshot.threads[1]))

    columns = mt.Unwinder().columns((snapshot,))

    walks = [plain(one) for one in mt.unwind(snapshot)]
    assert walks == list(columns)
    assert FrameTrust.ASYNC is walks[0].addresses[-1].trust
    assert AddressKind.ASYNC_RESUME is KINDS[columns.kinds[int(columns.starts[1]) - 1]]
    assert {0} == set(columns.physical_remainders)


def test_rules_are_cached_for_the_next_snapshot():
    """Images at the same addresses with the same UUIDs: memory is not read again."""
    snapshot = synthetic_process(threads=3).snapshot
    unwinder = mt.Unwinder()
    expected = unwinder.unwind(snapshot)
    later = replace(snapshot, images=ImageList(snapshot.images), memory=RegionMemory())

    assert [plain(one) for one in expected] == [plain(one) for one in unwinder.unwind(later)]
    assert [plain(one) for one in expected] != [plain(one) for one in mt.unwind(later)]


def test_tables_that_one_snapshot_lacks_are_read_from_the_next():
    """An image whose bytes were unavailable is searched again."""
    snapshot = synthetic_process(threads=3).snapshot
    unwinder = mt.Unwinder()
    unwinder.unwind(replace(snapshot, memory=RegionMemory()))

    assert list(map(plain, mt.unwind(snapshot))) == list(map(plain, unwinder.unwind(snapshot)))


def test_snapshots_that_lack_the_same_bytes_share_rules():
    """Missing bytes are not requested again, nor are rules computed again."""
    snapshot = synthetic_process(threads=3).snapshot
    unwinder = mt.Unwinder()
    bare = [replace(snapshot, memory=RegionMemory()) for _ in range(2)]
    assert unwinder.unwind(bare[0])
    rules = unwinder.rules(bare[0])
    assert unwinder.rules(bare[1]) is rules
    assert unwinder.rules(snapshot) is not rules


def test_code_that_one_snapshot_lacks_is_read_from_the_next():
    """Both have the headers; only the second has the pages after them."""
    snapshot = synthetic_process(threads=3).snapshot
    regions = snapshot.memory.regions
    heads = RegionMemory(
        [MemoryRegion(region.start, region.data[:TEXT_OFFSET]) for region in regions]
    )
    unwinder = mt.Unwinder()
    unwinder.unwind(replace(snapshot, memory=heads))
    rules = unwinder.rules(replace(snapshot, memory=heads))
    assert rules.statistics.missing > 0
    assert rules.statistics.malformed == 0
    again = RegionMemory(heads.regions)
    assert unwinder.rules(replace(snapshot, memory=again)) is rules
    assert list(map(plain, mt.unwind(snapshot))) == list(map(plain, unwinder.unwind(snapshot)))
    assert unwinder.rules(snapshot) is not rules


def test_images_without_uuids_share_no_rules():
    """Two programs may be loaded at one address."""
    snapshot = synthetic_process(threads=3).snapshot
    nameless = ImageList(replace(image, uuid=None) for image in snapshot.images)
    unwinder = mt.Unwinder()
    unwinder.unwind(replace(snapshot, images=nameless))
    later = replace(snapshot, images=ImageList(nameless), memory=RegionMemory())

    assert list(map(plain, mt.unwind(later))) == list(map(plain, unwinder.unwind(later)))
