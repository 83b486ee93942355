"""Search paths: folders of any size and shape, symbol stores, debug files of ELF images."""

import os
import shutil
import subprocess
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.header import FileType
from machtrace.images import folder_index
from machtrace.images.debug_file import DebugFile, FoundBy
from machtrace.images.folder_index import make_index
from machtrace.images.resolver import ImageResolver
from machtrace.images.search_path import SearchPath
from machtrace.images.search_record import Outcome
from machtrace.images.store_layout import (
    FileKind,
    build_id_path,
    debuginfod_path,
    lldb_path,
    unified_path,
)
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, BuildId, ImageFormat
from machtrace.model.symbol import FrameStatus
from tests.support.compilers.executables import compile_elf
from tests.support.writers.debug_files import dwarf_file, write_dsym
from tests.support.writers.macho import ThinFile

OURS = UUID("0A1E5C3A-0000-4000-8000-00000000B001")


def image_of(uuid=OURS, path="/target/X", image_format=ImageFormat.MACHO, arch=Arch.ARM64):
    """An image of a target on another machine."""
    return BinaryImage(
        path=path,
        uuid=uuid,
        arch=arch,
        format=image_format,
        load_address=Avma(0x1_0000_0000),
        header_svma=0,
        size=0x4000,
    )


def put(path, data):
    """Write a file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


LAYOUTS = [unified_path, lldb_path, build_id_path, debuginfod_path]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("depth", ["", "nested/in/it"], ids=["root", "nested"])
def test_symbol_stores_are_searched_by_identifier(tmp_path, layout, depth, monkeypatch):
    """In every layout with paths for both files; none of the store's files is indexed."""
    root = tmp_path / depth
    for kind, data in (
        (FileKind.DEBUGINFO, dwarf_file(OURS)),
        (FileKind.EXECUTABLE, ThinFile(uuid=OURS).build()),
    ):
        put(root / layout(OURS, kind), data)
        put(root / layout(UUID(int=5), kind), data)
    opened = []
    real = folder_index.identifiers_of
    monkeypatch.setattr(
        folder_index, "identifiers_of", lambda path: opened.append(path) or real(path)
    )

    files = ImageResolver.of(tmp_path).files(image_of())
    assert isinstance(files.lines, DebugFile)
    assert FoundBy.STORE is files.lines.found_by
    assert str(root / layout(OURS, FileKind.DEBUGINFO)) == files.lines.path
    assert FileType.BUNDLE is files.binary.image.header.filetype
    assert opened == []


def test_a_store_in_lldbs_layout_may_link_to_the_bundle(tmp_path):
    """Apple's tools link to the DWARF file; links to bundles are followed, too."""
    dwarf = write_dsym(tmp_path / "dSYMs" / "X.dSYM", "X", dwarf_file(OURS))
    for target in (dwarf, dwarf.parents[3]):
        link = tmp_path / "store" / lldb_path(OURS, FileKind.DEBUGINFO)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)

        found = ImageResolver.of(tmp_path / "store").files(image_of()).lines
        assert isinstance(found, DebugFile)
        assert dwarf.samefile(found.path)


def test_of_two_architectures_with_one_uuid_the_right_one_is_used(tmp_path):
    """As in machtrace's own stores."""
    place = tmp_path / unified_path(OURS, FileKind.DEBUGINFO)
    put(place, dwarf_file(OURS))
    other = put(place.with_name("debuginfo.arm64e"), dwarf_file(OURS, cpusubtype=0x80000002))
    places = SearchPath.of(tmp_path)

    for arch, path in ((Arch.ARM64, place), (Arch.ARM64E, other)):
        found = ImageResolver(places).files(image_of(arch=arch)).lines
        assert isinstance(found, DebugFile)
        assert str(path) == found.path


def test_a_stores_wrong_file_is_not_used(tmp_path):
    """The file at an identifier's path is checked, too."""
    put(tmp_path / unified_path(OURS, FileKind.DEBUGINFO), dwarf_file(UUID(int=9)))

    found = ImageResolver.of(tmp_path).files(image_of()).lines
    assert FrameStatus.MISMATCHED_FILE is found


def test_a_folder_is_scanned_once(tmp_path, monkeypatch):
    """For any number of images and concurrent users."""
    for number in range(20):
        put(tmp_path / f"{number}" / "lib", ThinFile(uuid=UUID(int=number + 1)).build())
    made = []
    real = folder_index.make_index
    monkeypatch.setattr(folder_index, "make_index", lambda path: made.append(path) or real(path))
    first, second = ImageResolver.of(tmp_path), ImageResolver.of(tmp_path)

    for number in range(20):
        image = image_of(UUID(int=number + 1), "/target/other-name")
        assert not isinstance(first.binary(image), FrameStatus)
        assert not isinstance(second.binary(image), FrameStatus)
    assert [str(tmp_path)] == made


def test_a_folder_is_not_scanned_if_it_has_a_file_of_the_images_name(tmp_path, monkeypatch):
    put(tmp_path / "X", ThinFile(uuid=OURS).build())
    monkeypatch.setattr(folder_index, "make_index", lambda _: pytest.fail("it was"))

    assert not isinstance(ImageResolver.of(tmp_path).binary(image_of()), FrameStatus)


def test_cycles_of_links_end(tmp_path):
    """A folder that contains itself, a link to nowhere, a link to itself."""
    put(tmp_path / "a" / "b" / "X.bin", ThinFile(uuid=OURS).build())
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "nowhere").symlink_to("/nowhere/at/all")
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a" / "self")
    os.mkfifo(tmp_path / "a" / "pipe")

    index = make_index(str(tmp_path))
    assert index.files == 1
    assert (str(tmp_path / "a" / "b" / "X.bin"),) == index.by_identifier[OURS]


def test_unreadable_files_are_counted_and_skipped(tmp_path, monkeypatch):
    """A folder that may not be listed, a file that may not be opened, one that is damaged."""
    put(tmp_path / "closed" / "hidden", b"")
    put(tmp_path / "damaged", ThinFile(uuid=UUID(int=1)).build()[:60])
    put(tmp_path / "shut", b"")
    put(tmp_path / "open", ThinFile(uuid=OURS).build())
    listed, opened = os.scandir, os.open

    def refusing(real, name):
        def call(path, *arguments):
            if str(path).endswith(name):
                raise PermissionError(13, "Permission denied", path)
            return real(path, *arguments)

        return call

    monkeypatch.setattr(os, "scandir", refusing(listed, "closed"))
    monkeypatch.setattr(os, "open", refusing(opened, "shut"))
    index = make_index(str(tmp_path))

    assert (index.files, index.malformed, index.unreadable) == (3, 1, 2)
    assert list(index.by_identifier) == [OURS]
    assert str(index) == "3 files, 1 image, 1 malformed, 2 unreadable"


@pytest.mark.parametrize("limit", ["ENTRIES_LIMIT", "FILES_LIMIT"])
def test_the_scan_of_a_large_folder_ends_and_is_reported(tmp_path, monkeypatch, limit):
    """Files seen until then are used; symbols come first."""
    module = folder_index
    for number in range(50):
        put(tmp_path / "b" / f"{number:02}", ThinFile(uuid=UUID(int=number + 1)).build())
    write_dsym(tmp_path / "z.dSYM", "X", dwarf_file(OURS))
    monkeypatch.setattr(module, limit, 12)
    places = SearchPath.of(tmp_path)

    assert isinstance(ImageResolver(places).files(image_of()).lines, DebugFile)
    search = ImageResolver(places).files(image_of(UUID(int=50)))
    assert isinstance(search.lines, FrameStatus)
    assert Outcome.CUT_SHORT in [attempt.outcome for attempt in search.attempts]


def test_files_of_other_builds_are_reported(tmp_path):
    """Nothing has the identifier, but something has the name."""
    other = write_dsym(tmp_path / "old" / "X.dSYM", "X", dwarf_file(UUID(int=77)))

    search = ImageResolver.of(tmp_path).files(image_of())
    told = next(attempt for attempt in search.attempts if attempt.location == str(tmp_path))
    assert Outcome.NO_MATCH is told.outcome
    assert str(other) in str(told)


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"PK\x03\x04" + bytes(50), "machtrace symbols add"), (b"!<arch>\n", "static library")],
    ids=["zip", "archive"],
)
def test_an_archive_is_reported_with_a_remedy(tmp_path, data, words):
    """Downloaded files are often packed."""
    given = put(tmp_path / "X.dSYM.zip", data)

    search = ImageResolver.of(given).files(image_of())
    assert FrameStatus.MISSING_FILE is search.lines
    assert words in str(search.attempts[0])


@pytest.mark.parametrize("place", ["", "\0", "/dev/null", "~nobody-at-all/x"], ids=repr)
def test_invalid_search_paths_are_harmless(place):
    assert FrameStatus.MISSING_FILE is ImageResolver.of(place).files(image_of()).lines


# --- ELF ---


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """(folder, stripped program, its debug file), linked by name and by build-id."""
    if shutil.which("cc") is None or shutil.which("objcopy") is None:
        pytest.skip("cc and objcopy are not installed; they make the files that are looked for")
    folder = tmp_path_factory.mktemp("elf")
    source = folder / "program.c"
    source.write_text("int twice(int x) { return 2 * x; }\nint main(void) { return twice(4); }\n")
    whole = compile_elf([source], folder / "whole", options=["-g", "-Wl,--build-id=sha1"])
    run = lambda *command: subprocess.run(command, check=True, capture_output=True)  # noqa: E731
    run("objcopy", "--only-keep-debug", whole, folder / "program.debug")
    run("objcopy", "--strip-all", f"--add-gnu-debuglink={folder}/program.debug", whole,
        folder / "program")  # fmt: skip
    run("objcopy", "--remove-section=.note.gnu.build-id", "--only-keep-debug", whole,
        folder / "plain.debug")  # fmt: skip
    run("objcopy", "--remove-section=.note.gnu.build-id", "--strip-all", whole, folder / "bare")
    run("objcopy", f"--add-gnu-debuglink={folder}/plain.debug", folder / "bare", folder / "plain")
    return folder


def elf_image(path, local=None):
    """The image of an ELF file."""
    contents = ElfFileContents(path.read_bytes(), str(path))
    return BinaryImage(
        path=str(path),
        uuid=contents.image.build_id,
        arch=contents.image.arch,
        format=ImageFormat.ELF,
        load_address=Avma(0x1_0000_0000),
        header_svma=contents.image.header_svma,
        size=0x4000,
        local_path=local,
    )


@pytest.mark.peer
def test_the_debug_link_is_followed(program, tmp_path):
    """Beside the binary, in .debug there, and below the roots."""
    for place in ("program.debug", ".debug/program.debug", f"root{tmp_path}/program.debug"):
        shutil.copy(program / "program", tmp_path / "program")
        debug = put(tmp_path / place, (program / "program.debug").read_bytes())
        places = SearchPath(debug_roots=[str(tmp_path / "root")])

        files = ImageResolver(places).files(elf_image(tmp_path / "program"))
        assert isinstance(files.lines, DebugFile)
        assert (str(debug), FoundBy.DEBUG_LINK) == (files.lines.path, files.lines.found_by)
        assert files.lines.header_svma == files.binary.image.header_svma
        assert files.symbols is files.lines
        debug.unlink()


@pytest.mark.peer
def test_the_build_id_is_looked_up_first(program, tmp_path):
    """In the system's folder of debug files, and in debuginfod's cache."""
    image = elf_image(program / "program")
    data = (program / "program.debug").read_bytes()
    image = image_of(image.uuid, "/elsewhere/program", ImageFormat.ELF, image.arch)
    installed = put(tmp_path / "debug" / build_id_path(image.uuid, FileKind.DEBUGINFO), data)
    places = SearchPath(debug_roots=[str(tmp_path / "debug")])

    found = ImageResolver(places).files(image).lines
    assert isinstance(found, DebugFile)
    assert (str(installed), FoundBy.BUILD_ID) == (found.path, found.found_by)

    assert FrameStatus.MISSING_FILE is ImageResolver(SearchPath(debug_roots=())).files(image).lines
    given = ImageResolver.of(tmp_path / "debug").files(image).lines
    assert isinstance(given, DebugFile)


@pytest.mark.peer
def test_without_a_build_id_the_checksum_must_match(program, tmp_path):
    for name in ("plain", "plain.debug"):
        shutil.copy(program / name, tmp_path / name)
    image = elf_image(tmp_path / "plain", local=str(tmp_path / "plain"))
    assert image.uuid is None
    places = SearchPath(debug_roots=())

    found = ImageResolver(places).files(image).lines
    assert isinstance(found, DebugFile)
    assert FoundBy.DEBUG_LINK is found.found_by

    with (tmp_path / "plain.debug").open("ab") as file:
        file.write(b"\0")
    files = ImageResolver(places).files(image)
    assert FrameStatus.MISMATCHED_FILE is files.lines
    assert Outcome.OTHER_CHECKSUM in [attempt.outcome for attempt in files.attempts]


@pytest.mark.peer
def test_a_debug_file_of_another_build_is_not_used(program, tmp_path):
    """It has the linked name, and another build-id."""
    shutil.copy(program / "program", tmp_path / "program")
    source = program / "program.c"
    compile_elf([source], tmp_path / "program.debug", options=["-g", "-O2", "-Wl,--build-id=sha1"])

    files = ImageResolver(SearchPath(debug_roots=())).files(elf_image(tmp_path / "program"))
    assert FrameStatus.MISMATCHED_FILE is files.lines


@pytest.mark.peer
def test_dwarf_in_the_binary_itself_is_used(program):
    """Nothing was stripped."""
    files = ImageResolver().files(elf_image(program / "whole"))
    assert isinstance(files.lines, DebugFile)
    assert (FoundBy.ITSELF, str(program / "whole")) == (files.lines.found_by, files.lines.path)


@pytest.mark.peer
def test_a_debug_file_is_not_taken_for_the_binary(program):
    """It has no instructions, although its build-id is the same."""
    image = elf_image(program / "program")
    image = image_of(image.uuid, "/elsewhere/program", ImageFormat.ELF, image.arch)
    source = ImageResolver.of(program / "program.debug")

    assert isinstance(source.binary(image), FrameStatus)
    assert isinstance(source.files(image).lines, DebugFile)


@pytest.mark.peer
def test_names_moved_by_dwz_are_reported(program, tmp_path):
    """They are in another file, which is not read."""
    debug = tmp_path / "program.debug"
    link = put(tmp_path / "link", b"/usr/lib/debug/.dwz/common\0" + bytes(range(20)))
    subprocess.run(
        ["objcopy", f"--add-section=.gnu_debugaltlink={link}", program / "program.debug", debug],
        check=True,
    )
    image = elf_image(debug)

    search = ImageResolver.of(debug).files(image)
    assert isinstance(search.lines, DebugFile)
    told = next(attempt for attempt in search.attempts if attempt.outcome is Outcome.NOT_READ)
    assert told.location == "/usr/lib/debug/.dwz/common"
    assert str(BuildId(bytes(range(20)))) in told.detail


@pytest.mark.peer
@settings(max_examples=60, deadline=20_000, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_elf_files_are_a_status(program, tmp_path, data):
    """Any bytes in headers, sections and links of the binary and of its debug file."""
    image = elf_image(program / "program")
    image = image_of(image.uuid, str(tmp_path / "program"), ImageFormat.ELF, image.arch)
    for name in ("program", "program.debug"):
        changed = bytearray((program / name).read_bytes())
        tables = len(changed) - 0x900
        for _ in range(data.draw(st.integers(0, 6))):
            at = data.draw(st.integers(4, 0x400) | st.integers(tables, len(changed) - 4))
            value = data.draw(st.binary(min_size=1, max_size=4) | st.just(b"\xff" * 4))
            changed[at : at + len(value)] = value
        (tmp_path / name).write_bytes(changed)

    files = ImageResolver(SearchPath(debug_roots=())).files(image)
    if isinstance(files.lines, DebugFile):
        assert image.uuid == files.lines.uuid
