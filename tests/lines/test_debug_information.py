"""Symbols and debug information of one image, put together."""

import numpy as np
import pytest

from machtrace.errors import DebugInformationError
from machtrace.images.resolver import ImageResolver
from machtrace.lines.debug_information import DebugInformation
from machtrace.lines.index_cache import IndexCache
from machtrace.model.address import Avma, Svma
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import RegionMemory
from machtrace.model.snapshot import ProcessInfo, Snapshot
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust
from machtrace.model.symbol import Certainty, FrameStatus
from machtrace.symbolizer.symbolicator import Symbolicator
from tests.support.compilers.debug_programs import debug_file
from tests.support.compilers.executables import compile_elf

pytestmark = pytest.mark.peer

LOADED = 0x7000_0000_0000
SOURCE = """\
volatile int sink;
__attribute__((noinline)) static int hidden(int n) {
  sink = n;
  return n;
}
int exported(int n) {
  return hidden(n) + 1;
}
extern __typeof(exported) folded __attribute__((alias("hidden_alias")));
__attribute__((noinline)) int hidden_alias(int n) {
  sink = n;
  return 5;
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A shared object with DWARF; compiled once."""
    folder = tmp_path_factory.mktemp("named")
    (folder / "named.c").write_text(SOURCE)
    options = ("-g", "-O1", "-shared", "-Wl,--build-id=sha1")
    return compile_elf(
        [folder / "named.c"], folder / "named.so", target="x86_64-linux-musl", options=options
    )


def image_of(path):
    """Return its image, loaded at some address."""
    contents = debug_file(path).contents
    return BinaryImage(
        path=str(path),
        uuid=contents.image.build_id,
        arch=contents.image.arch,
        format=ImageFormat.ELF,
        load_address=Avma(LOADED),
        header_svma=Svma(contents.image.header_svma),
        size=contents.image.size,
    )


def frame_at(path, offset, **options):
    """Return the frame at an offset of it."""
    image = image_of(path)
    snapshot = Snapshot(
        process=ProcessInfo(pid=None, path=image.path, arch=image.arch),
        threads=(),
        images=ImageList([image]),
        memory=RegionMemory(),
    )
    address = FrameAddress(Avma(LOADED + offset), FrameTrust.CONTEXT, AddressKind.PROGRAM_COUNTER)
    return Symbolicator(**options).frame(address, snapshot)


def starts(path):
    """Return the offsets of functions by the debug information."""
    index = DebugInformation(ImageResolver.of(), IndexCache(None)).index(image_of(path))
    offsets = {}
    for offset in range(image_of(path).size):
        for frame in index.inlined(offset)[-1:]:
            offsets.setdefault(frame.name, offset)
    return offsets


def without_symbols(path, output):
    """Return a copy without symbol tables."""
    file = debug_file(path)
    data = bytearray(file.data)
    header = file.contents.image.header
    for number, section in enumerate(file.contents.image.sections):
        if section.name in {".symtab", ".dynsym"}:
            at = header.section_headers_offset + number * header.section_header_size + 4
            data[at : at + 4] = bytes(4)
    output.write_bytes(data)
    return output


def test_a_function_without_a_symbol_has_its_name_from_debug_information(built, tmp_path):
    """The name is exact, with the function's start."""
    stripped = without_symbols(built, tmp_path / "named.so")
    offset = starts(stripped)["hidden"]

    frame = frame_at(stripped, offset + 2)

    assert frame.status is FrameStatus.SYMBOLICATED
    assert (frame.symbol.name, frame.symbol.offset) == ("hidden", offset)
    assert frame.symbol.certainty is Certainty.EXACT


def test_of_several_names_the_one_in_the_debug_information_is_used(built):
    """An alias is another name of the same instructions."""
    offset = starts(built)["hidden_alias"]

    frame = frame_at(built, offset)

    assert frame.symbol.name == "hidden_alias"
    assert "folded" in frame.symbol.aliases
    assert frame.location.line in range(10, 14)


def test_without_lines_no_debug_information_is_searched(built):
    frame = frame_at(built, starts(built)["exported"], lines=False)

    assert frame.symbol.name == "exported"
    assert frame.location is None


def test_malformed_debug_information_leaves_the_names(built, tmp_path):
    """The error is recorded, and not raised by the lookup."""
    file = debug_file(built)
    section = file.contents.image.section(".debug_info")
    data = bytearray(file.data)
    data[section.offset : section.offset + section.size] = b"\xff" * section.size
    bad = tmp_path / "bad.so"
    bad.write_bytes(data)
    information = DebugInformation(ImageResolver.of(), IndexCache(None))

    frame = frame_at(bad, starts(built)["exported"])

    assert (frame.symbol.name, frame.location) == ("exported", None)
    assert information.index(image_of(bad)) is FrameStatus.MALFORMED_FILE
    assert [type(problem) for problem in information.problems] == [DebugInformationError]


def test_columns_have_the_lines_of_single_frames(built):
    """Both query the same index."""
    index = DebugInformation(ImageResolver.of(), IndexCache(None)).index(image_of(built))
    offsets = np.array(sorted(starts(built).values()), np.uint64)

    assert index.columns(offsets).line.tolist() == [
        frame_at(built, int(offset)).location.line for offset in offsets
    ]
