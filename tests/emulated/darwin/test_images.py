"""dyld's images, as its callbacks report them: a list that can be read at any moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from struct import pack

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.arch import Arch

pytest.importorskip("unicorn", reason="unicorn runs the core")
from tests.support.emulated.inprocess_core import CaptureCore, ListedImage
from tests.support.emulated.library import Call
from tests.support.emulated.libsystem import DyldImage
from tests.support.emulated.mach import KernReturn, MachThread

ARCHES = pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
CPU = (0x0100000C, 2)
TEXT = 0x1_0000_0000
DYLD_PATH = "/usr/lib/system/dyld"
PURE = {"_memcpy", "_memmove", "_memset", "_bzero", "___bzero", "dyld_stub_binder"}
"""Functions that read and write only their arguments."""
Library = Callable[[Arch], MachOFileContents]


def header(core: CaptureCore, number: int, *, with_uuid: bool = True) -> ListedImage:
    """Write an image's header to memory; what is to be listed of it, but for its path."""
    place = core.library.allocate(0x400)
    uuid = bytes([number % 256] * 15 + [number // 256])
    size = 0x4000 * (number + 1)
    text = pack("<2I16s4Q4I", 0x19, 72, b"__TEXT", TEXT, size, 0, size, 5, 5, 0, 0)
    page_zero = pack("<2I16s4Q4I", 0x19, 72, b"__PAGEZERO", 0, TEXT, 0, 0, 0, 0, 0, 0)
    commands = [page_zero, text]
    if with_uuid:
        commands.append(pack("<2I16s", 0x1B, 24, uuid))
    head = pack("<8I", 0xFEEDFACF, *CPU, 6, len(commands), sum(map(len, commands)), 0, 0)
    core.memory.write(place, head + b"".join(commands))
    slide = (place - TEXT) % (1 << 64)
    return ListedImage(place, slide, size, CPU, uuid if with_uuid else None, "")


def put(core: CaptureCore, number: int, path: str | None = None) -> ListedImage:
    """An image that dyld has."""
    image = replace(header(core, number), path=path or f"/Library/number {number}.dylib")
    core.dyld.images.append(DyldImage(image.load_address, image.slide, image.path))
    return image


def watched(library: Library, arch: Arch, count: int) -> tuple[CaptureCore, list[ListedImage]]:
    """A process with images that is watched; dyld's own is the first."""
    core = CaptureCore(library(arch), [MachThread(1)])
    dyld = replace(header(core, 99), path=DYLD_PATH)
    core.task.dyld_infos = infos = core.library.allocate(0x200)
    core.memory.set_word(infos, 15, 4)
    core.memory.set_word(infos + 32, dyld.load_address)
    core.memory.set_word(infos + 192, core.dyld.string(DYLD_PATH))
    images = [dyld, *(put(core, number) for number in range(count))]
    assert core.library.call("_machtrace_images_watch") % 256 == 1
    return core, images


def adding(core: CaptureCore, image: ListedImage) -> Call:
    """Dyld's call for an image that came."""
    return core.begin_call(core.dyld.on_add[0], image.load_address, image.slide)


def removing(core: CaptureCore, image: ListedImage) -> Call:
    """Dyld's call for an image that goes."""
    return core.begin_call(core.dyld.on_remove[0], image.load_address, image.slide)


def by_address(images: list[ListedImage]) -> list[ListedImage]:
    """The list has no order."""
    return sorted(images, key=lambda image: image.load_address)


def changes(core: CaptureCore) -> int:
    """``machtrace_inprocess_image_changes``."""
    return core.library.call("_machtrace_inprocess_image_changes")


@ARCHES
def test_all_that_dyld_tells_is_listed_and_dyld_itself(arch: Arch, core_library: Library) -> None:
    """With addresses, sizes, identifiers and paths."""
    core, images = watched(core_library, arch, 5)
    assert by_address(core.images()) == by_address(images)
    assert core.library.call("_machtrace_images_watch") % 256 == 1
    assert len(core.dyld.on_add) == len(core.dyld.on_remove) == 1
    core.assert_released()


@ARCHES
def test_what_comes_and_goes_changes_the_number(arch: Arch, core_library: Library) -> None:
    """Who saw a number saw the images that it counts."""
    core, images = watched(core_library, arch, 2)
    before = changes(core)
    assert changes(core) == before
    young = put(core, 7)
    core.library.run(adding(core, young))
    assert by_address(core.images()) == by_address([*images, young])
    after = changes(core)
    assert after != before
    core.library.run(removing(core, images[1]))
    assert by_address(core.images()) == by_address([images[0], images[2], young])
    assert changes(core) not in (before, after)


@ARCHES
def test_reading_calls_nothing_that_could_wait(arch: Arch, core_library: Library) -> None:
    """So it may be read while threads are suspended, whatever these were doing."""
    core, _ = watched(core_library, arch, 5)
    core.task.calls.clear()
    core.images()
    assert set(core.task.calls) <= PURE
    core.task.calls.clear()
    changes(core)
    assert set(core.task.calls) <= PURE


@pytest.mark.parametrize("kind", ["adding", "adding again", "removing"])
@ARCHES
def test_it_reads_whole_at_every_instruction_of_a_change(
    arch: Arch, kind: str, core_library: Library
) -> None:
    """Where a thread is suspended in the middle of a callback, others need not wait for it."""
    core, images = watched(core_library, arch, 3)
    core.library.call("_machtrace_images_copy", 0, 0)  # bound, once and for all
    young = put(core, 9)
    if kind == "adding again":  # to the place of one that went
        core.library.run(removing(core, images[1]))
        del images[1]
    changed = young if kind != "removing" else images[1]
    without = [image for image in images if image is not changed]
    call = (removing if kind == "removing" else adding)(core, changed)
    before = changes(core)
    seen = []
    ended = False
    while not ended:
        ended = core.library.run(call, 1)
        listed = core.images()
        assert by_address([one for one in listed if one != changed]) == by_address(without)
        seen.append((listed.count(changed), changes(core) != before))
    wanted = (0, True) if kind == "removing" else (1, True)
    assert seen[-1] == wanted
    assert seen[0] == (1 - wanted[0], False)
    # The number is another only after the change was made, and the change is made once.
    there = [count for count, _ in seen]
    assert there == sorted(there, reverse=kind == "removing")
    assert all(count == wanted[0] for count, is_told in seen if is_told)
    assert len(seen) > 30


@ARCHES
def test_two_threads_may_add_at_once(arch: Arch, core_library: Library) -> None:
    """At each instruction of one callback another runs wholly; neither image is lost."""
    core, images = watched(core_library, arch, 1)
    for number in range(40):
        core.library.run(removing(core, images.pop()) if number % 2 else removing(core, images[0]))
        images = core.images()
        first, second = put(core, 2 * number + 100), put(core, 2 * number + 101)
        call = adding(core, first)
        core.library.run(call, 1 + number * 29)
        core.library.run(adding(core, second))
        core.library.run(call)
        images += [first, second]
        assert by_address(core.images()) == by_address(images)


@ARCHES
def test_loading_and_unloading_again_takes_no_more_memory(
    arch: Arch, core_library: Library
) -> None:
    """Entries are used again, for whatever path fits."""
    core, images = watched(core_library, arch, 3)
    for number in range(120):
        image = put(core, number + 10, f"/Library/{'x' * (number * 37 % 900)}.so")
        core.library.run(adding(core, image))
        assert by_address(core.images()) == by_address([*images, image])
        core.library.run(removing(core, image))
    assert len(core.libsystem.blocks) <= len(images) + 6
    assert by_address(core.images()) == by_address(images)


@ARCHES
def test_long_paths_are_cut_and_missing_ones_are_empty(arch: Arch, core_library: Library) -> None:
    """A path has room for PATH_MAX."""
    core, images = watched(core_library, arch, 0)
    for number, length in enumerate((1022, 1023, 1024, 3000)):
        image = put(core, number, "/" * length)
        core.library.run(adding(core, image))
        images.append(replace(image, path=image.path[:1023]))
    unknown = header(core, 50, with_uuid=False)
    core.library.run(adding(core, unknown))
    images.append(unknown)
    assert by_address(core.images()) == by_address(images)


@ARCHES
def test_headers_that_lie_are_read_no_further_than_they_are(
    arch: Arch, core_library: Library
) -> None:
    """Commands without end, and of no size; the image is listed all the same."""
    core, _ = watched(core_library, arch, 0)
    for count, size, first in ((1 << 31, 0x100, 0), (3, 4, 72), (9, 0x100, 1 << 30), (9, 72, 71)):
        place = core.library.allocate(0x400)
        core.memory.write(place, pack("<8I", 0xFEEDFACF, *CPU, 6, count, size, 0, 0))
        core.memory.write(place + 32, pack("<2I16s", 0x19, first, b"__TEXT"))
        core.library.run(core.begin_call(core.dyld.on_add[0], place, 0x55))
        (found,) = (image for image in core.images() if image.load_address == place)
        assert found == ListedImage(place, 0x55, 0, CPU, None, "")


@ARCHES
def test_images_for_which_memory_lacks_are_counted(arch: Arch, core_library: Library) -> None:
    """They are not in the list, and the result shows it."""
    core, images = watched(core_library, arch, 1)
    core.task.fault = lambda name, _: KernReturn.FAILURE if name == "_malloc" else None
    core.library.run(adding(core, put(core, 5)))
    assert by_address(core.images()) == by_address(images)
    assert core.library.call("_machtrace_images_lost") == 1


@ARCHES
def test_as_many_are_copied_as_there_is_room_for(arch: Arch, core_library: Library) -> None:
    """And all are counted."""
    core, images = watched(core_library, arch, 5)
    assert len(core.images(room=2)) == 2
    assert core.library.call("_machtrace_images_copy", 0, 0) == len(images)


@ARCHES
def test_nobody_waits_for_who_begins_to_watch(arch: Arch, core_library: Library) -> None:
    """It may wait for dyld's lock, which another caller may hold."""
    core = CaptureCore(core_library(arch), [MachThread(1)])
    images = [put(core, number) for number in range(2)]
    core.library.call("_machtrace_images_copy", 0, 0)
    call = core.begin_call("_machtrace_images_watch")
    while not core.task.calls.count("_task_info"):  # it has begun
        core.library.run(call, 1)
    numbers = []
    # Until it is over, no two answers are the same.
    while not core.library.run(call, 1):
        if not core.library.call("_machtrace_images_watch") % 256:
            numbers.append(changes(core))
        assert all(image in images for image in core.images())
    assert len(set(numbers)) == len(numbers) > 20
    assert by_address(core.images()) == by_address(images)
    assert core.library.call("_machtrace_images_watch") % 256 == 1
    assert changes(core) not in numbers


@ARCHES
def test_where_our_own_code_is(arch: Arch, core_library: Library) -> None:
    """From its header to the end of its segments."""
    core = CaptureCore(core_library(arch), [MachThread(1)])
    start, end = core.library.call_for_two("_machtrace_inprocess_image")
    image = core.library.image
    assert start == image.start < core.library.address("_machtrace_inprocess_copy") < end
    assert image.stop - 0x4000 < end <= image.stop  # but for what dyld alone reads
