"""Parts of capturing a process of macOS: labels of queues, and lists of images that change."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.targets.darwin.images import TaskImageFinder
from machtrace.targets.darwin.memory import TaskMemory
from machtrace.targets.darwin.queues import queue_labels, served_queues
from machtrace.targets.shared.paged_memory import PagedMemory
from tests.support.writers.processes import SyntheticProcess, synthetic_process

INFOS = 0x3_0000_0000
QUEUE = 0x2_0000_1000
LABEL_AT = 0x2_0000_2FF0
"""Sixteen bytes before the end of a page."""


class FakeMemory:
    """Memory with the extension's interface, and a hook for each read."""

    def __init__(self, *regions: tuple[int, bytes]) -> None:
        self.regions = {start: bytearray(data) for start, data in regions}
        self.reads = 0
        self.on_read: Callable[[], None] | None = None

    def read_memory(self, port: int, ranges: list[tuple[int, int]], /) -> list[bytes]:
        """Return the readable prefix of each range."""
        del port
        self.reads += 1
        if self.on_read is not None:
            self.on_read()
        return [self._read(*range_) for range_ in ranges]

    def _read(self, address: int, size: int) -> bytes:
        for start, data in self.regions.items():
            if start <= address < start + len(data):
                return bytes(data[address - start : address - start + size])
        return b""


def memory_of(fake: FakeMemory) -> TaskMemory:
    """Build the memory object of targets."""
    return TaskMemory(fake, 1)  # type: ignore[arg-type]  # the rest is not used


# --- dispatch queues ---


def queue_memory(label: bytes) -> FakeMemory:
    """Build a queue whose label is a pointer, as in libdispatch since macOS 10.9."""
    queue = bytes(0x48) + struct.pack("<Q", LABEL_AT)
    return FakeMemory((QUEUE, queue), (LABEL_AT, label), (0x5000, struct.pack("<Q", QUEUE)))


@pytest.mark.parametrize(
    "label", [b"main", b"com.example.a-label-that-crosses-into-the-next-page", "größe".encode()]
)
def test_a_queues_label_is_read_across_pages(label: bytes) -> None:
    memory = memory_of(queue_memory(label + b"\0rest"))
    assert served_queues(memory, [0x5000, 0, 0x6000]) == {0x5000: QUEUE}
    assert queue_labels(memory, [QUEUE, 0, 0x7000], (6, 0x48)) == {QUEUE: label.decode()}


@pytest.mark.parametrize(
    "label", [b"\0", b"\xff\xfe\0", b"\x01\x02\0", b"no end" + b"x" * 1000, b"cut off"]
)
def test_an_invalid_label_is_none(label: bytes) -> None:
    """The queue may be freed and its memory reused."""
    assert queue_labels(memory_of(queue_memory(label)), [QUEUE], (6, 0x48)) == {}


def test_an_old_library_has_the_label_in_the_queue_itself() -> None:
    """Before version 4 of its offsets."""
    memory = memory_of(FakeMemory((QUEUE, bytes(0x40) + b"old\0" + bytes(64))))
    assert queue_labels(memory, [QUEUE], (3, 0x40)) == {QUEUE: "old"}


def test_without_the_offsets_there_are_no_labels() -> None:
    """And nothing is read."""
    fake = queue_memory(b"main\0")
    assert queue_labels(memory_of(fake), [QUEUE], None) == {}
    assert fake.reads == 0


# --- images ---


@pytest.fixture(scope="module")
def process() -> SyntheticProcess:
    """A process of two images."""
    return synthetic_process(Arch.ARM64, threads=1, images=2)


class ChangingList:
    """A process whose dyld changes its list while it is read."""

    def __init__(self, process: SyntheticProcess) -> None:
        self.fake = FakeMemory(
            (INFOS, bytes(0x200)),
            *((region.start, bytes(region.data)) for region in process.regions),
        )
        self.process = process
        self.write(count=1, time=1)

    def write(self, *, count: int, time: int, is_changing: bool = False) -> None:
        """Write the structure and its array."""
        data = bytearray(0x200)
        array = 0 if is_changing else INFOS + 0x100
        struct.pack_into("<2IQ", data, 0, 17, count, array)
        struct.pack_into("<2Q", data, 176, 0, time)
        for place, region in enumerate(self.process.regions):
            struct.pack_into("<3Q", data, 0x100 + 24 * place, region.start, 0, 0)
        self.fake.regions[INFOS] = data

    def finder(self) -> TaskImageFinder:
        """Build a finder that does not wait."""
        memory = memory_of(self.fake)
        return TaskImageFinder(memory, PagedMemory(memory), Arch.ARM64, pause=lambda _: None)


def test_a_changing_list_is_read_again(process: SyntheticProcess) -> None:
    """It changes during the first read and between reads."""
    changing = ChangingList(process)
    changing.write(count=1, time=1, is_changing=True)

    def happens() -> None:
        if changing.fake.reads == 6:
            changing.write(count=1, time=2)
        if changing.fake.reads == 9:
            changing.write(count=2, time=3)

    changing.fake.on_read = happens
    found = changing.finder().find(Avma(INFOS))
    assert len(found.images) == 2
    assert found.changed_at == 3
    assert [image.uuid for image in found.images] == [one.uuid for one in process.snapshot.images]


def test_a_list_that_always_changes_gives_the_cached_images(process: SyntheticProcess) -> None:
    """Without cached images there is a problem, and no images."""
    changing = ChangingList(process)
    finder = changing.finder()
    known = finder.find(Avma(INFOS))
    assert len(known.images) == 1
    changing.write(count=2, time=9, is_changing=True)
    assert finder.find(Avma(INFOS)) is known
    found = changing.finder().find(Avma(INFOS))
    assert len(found.images) == 0
    assert "changing" in str(found.problems[0])
    assert changing.fake.reads < 1000


def test_images_are_cached_until_the_list_changes(process: SyntheticProcess) -> None:
    """Only the time stamp is read."""
    changing = ChangingList(process)
    finder = changing.finder()
    known = finder.find(Avma(INFOS))
    before = changing.fake.reads
    assert finder.find(Avma(INFOS)) is known
    assert changing.fake.reads - before <= 2
    changing.write(count=2, time=2)
    assert len(finder.find(Avma(INFOS)).images) == 2


def test_an_image_with_an_unreadable_header_has_its_address(process: SyntheticProcess) -> None:
    changing = ChangingList(process)
    changing.write(count=2, time=2)
    start = process.regions[1].start
    del changing.fake.regions[start]
    found = changing.finder().find(Avma(INFOS))
    assert {image.load_address: image.size for image in found.images}[start] == 0


def test_bad_headers_leave_the_other_images(process: SyntheticProcess) -> None:
    """Each is a separate problem."""
    changing = ChangingList(process)
    changing.write(count=2, time=2)
    changing.fake.regions[process.regions[1].start][:4] = b"\x7fELF"
    found = changing.finder().find(Avma(INFOS))
    assert len(found.images) == 1
    assert len(found.problems) == 1


def test_a_file_is_used_only_if_its_uuid_matches(process: SyntheticProcess, tmp_path: Path) -> None:
    """A program may have been rebuilt since it was started."""
    finder = ChangingList(process).finder()
    image = next(iter(process.snapshot.images))
    contents = {
        "the same": bytes(process.regions[0].data),
        "another": bytes(process.regions[1].data),
        "no Mach-O": b"text",
    }
    for name, data in contents.items():
        path = tmp_path / name
        path.write_bytes(data)
        found = finder.with_file(replace(image, path=str(path)))
        assert found.local_path == (str(path) if name == "the same" else None)
    assert finder.with_file(replace(image, path="/no/such/file")).local_path is None
