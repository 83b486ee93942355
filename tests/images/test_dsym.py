"""A dSYM is found where build systems put it, and is used only for its own build."""

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machtrace.formats.macho.header import CPU_TYPE_ARM, CPU_TYPE_ARM64, CPU_TYPE_X86_64
from machtrace.images import folder_index
from machtrace.images.debug_file import DebugFile, FoundBy
from machtrace.images.resolver import ImageResolver
from machtrace.images.search_path import SearchPath, Spotlight
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.symbol import FrameStatus
from tests.support.writers.debug_files import BuiltPart, dwarf_file, fat_of, write_dsym
from tests.support.writers.macho import BuiltSymbol, ThinFile

OURS = UUID("2B1E5C3A-0000-4000-8000-00000000A001")
OTHERS = UUID("2B1E5C3A-0000-4000-8000-00000000A002")


def image_at(path, uuid=OURS, arch=Arch.ARM64):
    """Return the image that a target states to be at ``path``."""
    return BinaryImage(
        path=str(path),
        uuid=uuid,
        arch=arch,
        format=ImageFormat.MACHO,
        load_address=Avma(0x1_0000_0000),
        header_svma=Svma(0),
        size=0x4000,
    )


def write(path, data):
    """Write a file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


BESIDE = {
    "a tool": ("prog", "prog.dSYM/Contents/Resources/DWARF/prog"),
    "a flat file": ("prog", "prog.dwarf"),
    "a library's stem": ("lib/libx.dylib", "lib/libx.dSYM/Contents/Resources/DWARF/libx.dylib"),
    "a Mac application": ("X.app/Contents/MacOS/X", "X.app.dSYM/Contents/Resources/DWARF/X"),
    "a phone's application": ("X.app/X", "X.app.dSYM/Contents/Resources/DWARF/X"),
    "a framework": ("F.framework/Versions/A/F", "F.framework.dSYM/Contents/Resources/DWARF/F"),
    "a framework in an application": (
        "X.app/Frameworks/F.framework/F",
        "F.framework.dSYM/Contents/Resources/DWARF/F",
    ),
    "a library in an application": (
        "X.app/Frameworks/libx.dylib",
        "libx.dylib.dSYM/Contents/Resources/DWARF/libx.dylib",
    ),
    "an xcframework": (
        "F.xcframework/ios-arm64/F.framework/F",
        "F.xcframework/ios-arm64/dSYMs/F.framework.dSYM/Contents/Resources/DWARF/F",
    ),
    "an archive": (
        "X.xcarchive/Products/Applications/X.app/X",
        "X.xcarchive/dSYMs/X.app.dSYM/Contents/Resources/DWARF/X",
    ),
}


@pytest.mark.parametrize("layout", BESIDE.values(), ids=BESIDE)
def test_a_dsym_is_found_beside_the_binary(tmp_path, layout):
    """In every layout of Xcode, CMake and dsymutil."""
    binary, dwarf = (tmp_path / part for part in layout)
    write(binary, ThinFile(uuid=OURS).build())
    write(dwarf, dwarf_file(OURS))

    found = ImageResolver().files(image_at(binary)).lines
    assert isinstance(found, DebugFile)
    assert (str(dwarf), OURS, FoundBy.BESIDE) == (found.path, found.uuid, found.found_by)


def test_a_dsym_is_found_beside_the_target_of_a_link(tmp_path):
    binary = write(tmp_path / "real" / "prog", ThinFile(uuid=OURS).build())
    dwarf = write_dsym(tmp_path / "real" / "prog.dSYM", "prog", dwarf_file(OURS))
    link = tmp_path / "bin" / "prog"
    link.parent.mkdir()
    link.symlink_to(binary)

    found = ImageResolver().files(image_at(link)).lines
    assert isinstance(found, DebugFile)
    assert dwarf.samefile(found.path)


def test_a_dsym_of_another_build_is_never_used(tmp_path):
    """Its name fits; its identifier is reported."""
    binary = write(tmp_path / "prog", ThinFile(uuid=OURS).build())
    dwarf = write_dsym(tmp_path / "prog.dSYM", "prog", dwarf_file(OTHERS))

    search = ImageResolver().files(image_at(binary))
    assert FrameStatus.MISMATCHED_FILE is search.lines
    told = [str(attempt) for attempt in search.attempts if attempt.location == str(dwarf)]
    assert [f"{dwarf}: is another image's (arm64 {str(OTHERS).upper()})"] == told


def test_a_damaged_dsym_does_not_hide_a_good_one(tmp_path):
    """The damaged one is beside the binary, the good one in a given folder."""
    binary = write(tmp_path / "bin" / "prog", ThinFile(uuid=OURS).build())
    write_dsym(tmp_path / "bin" / "prog.dSYM", "prog", dwarf_file(OURS)[:40])
    good = write_dsym(tmp_path / "symbols" / "deep" / "any.dSYM", "name", dwarf_file(OURS))

    image = image_at(binary)
    assert FrameStatus.MALFORMED_FILE is ImageResolver().files(image).lines
    found = ImageResolver.of(tmp_path / "symbols").files(image).lines
    assert isinstance(found, DebugFile)
    assert (str(good), FoundBy.IDENTIFIER) == (found.path, found.found_by)


def test_a_dsym_without_dwarf_is_skipped(tmp_path):
    """An empty dSYM is beside the binary, a whole one in a given folder."""
    binary = write(tmp_path / "bin" / "prog", ThinFile(uuid=OURS).build())
    write_dsym(tmp_path / "bin" / "prog.dSYM", "prog", dwarf_file(OURS, debug_info=b""))
    image = image_at(binary)
    assert FrameStatus.MISSING_FILE is ImageResolver().files(image).lines

    good = write_dsym(tmp_path / "symbols" / "prog.dSYM", "prog", dwarf_file(OURS))
    found = ImageResolver.of([tmp_path / "symbols"]).files(image).lines
    assert isinstance(found, DebugFile)
    assert str(good) == found.path


@pytest.mark.parametrize(
    "place",
    ["X.app.dSYM", "X.app.dSYM/Contents/Resources/DWARF/X", ".", "../given"],
    ids=["bundle", "file", "folder", "another spelling"],
)
def test_a_dsym_is_found_on_the_search_path(tmp_path, place):
    """The bundle, the file in it, or a folder around; the binary is not on this machine."""
    given = tmp_path / "given"
    dwarf = write_dsym(given / "X.app.dSYM", "X", dwarf_file(OURS))

    found = ImageResolver.of(given / place).files(image_at("/private/var/X.app/X")).lines
    assert isinstance(found, DebugFile)
    assert dwarf.samefile(found.path)


def test_an_xcarchive_has_the_binary_and_the_dsym(tmp_path):
    """For a report from another machine."""
    archive = tmp_path / "Archives" / "X 1.0.xcarchive"
    binary = write(archive / "Products/Applications/X.app/X", ThinFile(uuid=OURS).build())
    dwarf = write_dsym(archive / "dSYMs/X.app.dSYM", "X", dwarf_file(OURS))

    for place in (archive, archive.parent):
        files = ImageResolver.of(place).files(image_at("/var/containers/X.app/X"))
        assert isinstance(files.lines, DebugFile)
        assert (str(dwarf), str(binary)) == (files.lines.path, files.binary.source)


def test_a_dsym_is_found_beside_a_binary_on_the_search_path(tmp_path):
    """The report is from another machine, and so is the path in it."""
    binary = write(tmp_path / "Build" / "X.app" / "X", ThinFile(uuid=OURS).build())
    dwarf = write_dsym(tmp_path / "Build" / "X.app.dSYM", "X", dwarf_file(OURS))

    for place in (binary, binary.parent):
        files = ImageResolver.of(place).files(image_at("/var/containers/X.app/X"))
        assert isinstance(files.lines, DebugFile)
        assert str(dwarf) == files.lines.path


def test_files_on_the_search_path_are_read_once(tmp_path, monkeypatch):
    """Hundreds of dSYMs, for hundreds of images."""
    uuids = [UUID(int=number + 1) for number in range(10)]
    bundles = [tmp_path / f"{uuid}.dSYM" for uuid in uuids]
    for uuid, bundle in zip(uuids, bundles, strict=True):
        write_dsym(bundle, "X", dwarf_file(uuid))
    looked_into = []
    real = folder_index.identifiers_of
    monkeypatch.setattr(
        folder_index, "identifiers_of", lambda path: looked_into.append(path) or real(path)
    )
    source = ImageResolver.of(bundles)

    for uuid, bundle in zip(uuids, bundles, strict=True):
        lines = source.files(image_at("/X", uuid)).lines
        assert isinstance(lines, DebugFile)
        assert bundle in Path(lines.path).parents
    assert len(bundles) == len(looked_into)


ARM64E = (CPU_TYPE_ARM64, 0x80000002)
PARTS = {
    Arch.ARM64: ((CPU_TYPE_ARM64, 0), UUID(int=1)),
    Arch.ARM64E: (ARM64E, UUID(int=2)),
    Arch.X86_64: ((CPU_TYPE_X86_64, 3), UUID(int=3)),
}


@pytest.mark.parametrize("arch", PARTS)
def test_the_matching_slice_of_a_fat_dsym_is_used(tmp_path, arch):
    """With its UUID and its offset in the file."""
    parts = [
        BuiltPart(*cpu, dwarf_file(uuid, cputype=cpu[0], cpusubtype=cpu[1], debug_info=uuid.bytes))
        for cpu, uuid in PARTS.values()
    ]
    path = write_dsym(tmp_path / "F.framework.dSYM", "F", fat_of(parts))
    uuid = PARTS[arch][1]

    debug_file = ImageResolver.of(tmp_path).files(image_at("/F", uuid, arch)).lines
    assert isinstance(debug_file, DebugFile)
    assert (uuid, arch) == (debug_file.uuid, debug_file.arch)
    assert uuid.bytes == bytes(debug_file.data[-16:])
    end = debug_file.slice_offset + len(debug_file.data)
    assert path.read_bytes()[debug_file.slice_offset : end] == bytes(debug_file.data)


def test_a_32_bit_slice_beside_64_bit_ones_is_read(tmp_path):
    """armv7's DWARF is in another width of Mach-O."""
    thin = ThinFile(cputype=CPU_TYPE_ARM, cpusubtype=9, is_64=False, uuid=UUID(int=7)).build()
    wide = dwarf_file(UUID(int=8))
    data = fat_of([BuiltPart(CPU_TYPE_ARM, 9, thin), BuiltPart(CPU_TYPE_ARM64, 0, wide)])
    write_dsym(tmp_path / "X.dSYM", "X", data)
    source = ImageResolver.of(tmp_path)

    wide_files = source.files(image_at("/X", UUID(int=8)))
    assert isinstance(wide_files.lines, DebugFile)
    binary = source.files(image_at("/X", UUID(int=7), Arch.ARMV7)).binary
    assert Arch.ARMV7 is binary.image.arch


def test_addresses_are_relative_to_the_dsyms_header(tmp_path):
    """The executable was rebased after its dSYM was made."""
    binary = write(tmp_path / "prog", ThinFile(uuid=OURS, vmaddr=0x10000).build())
    write_dsym(tmp_path / "prog.dSYM", "prog", dwarf_file(OURS, header_svma=0x7000_0000))

    files = ImageResolver().files(image_at(binary))
    assert isinstance(files.lines, DebugFile)
    assert (files.lines.header_svma, files.binary.image.header_svma) == (0x7000_0000, 0x10000)


def test_a_dsym_is_not_taken_for_the_binary(tmp_path):
    """It has no instructions."""
    dwarf = write_dsym(tmp_path / "X.dSYM", "X", dwarf_file(OURS))
    source = ImageResolver.of(dwarf)

    assert isinstance(source.binary(image_at("/X")), FrameStatus)
    files = source.files(image_at("/X"))
    assert isinstance(files.binary, FrameStatus)
    assert isinstance(files.lines, DebugFile)
    assert FrameStatus.SYMBOLICATED is files.status


def test_an_unstripped_twin_gives_its_symbols(tmp_path):
    """The target's own file was stripped; the build folder has the unstripped one."""
    stripped = write(tmp_path / "app" / "prog", ThinFile(uuid=OURS).build())
    symbols = tuple(BuiltSymbol(f"_f{number}", 0x400 + 4 * number) for number in range(3))
    whole = write(tmp_path / "build" / "out", ThinFile(uuid=OURS, symbols=symbols).build())

    files = ImageResolver.of(tmp_path / "build").files(image_at(stripped))
    assert isinstance(files.symbols, DebugFile)
    assert str(whole) == files.symbols.path
    assert not files.symbols.has_dwarf
    assert isinstance(files.lines, FrameStatus)


def property_list(pairs):
    """Build an XML property list of strings and dictionaries."""
    import plistlib

    return plistlib.dumps(pairs)


REMAPPINGS = {
    "version 3 is used as it is": (
        {"DBGVersion": "3", "DBGSourcePathRemapping": {"/b/one": "/s/one", "/b": "/s/rest/"}},
        {"/b/one/a.c": "/s/one/a.c", "/b/two/a.c": "/s/rest/two/a.c", "/bb/a.c": "/bb/a.c"},
    ),
    "version 2 has two components too many": (
        {"DBGVersion": "2", "DBGSourcePathRemapping": {"/b/x/y": "/s/x/y"}},
        {"/b/z/a.c": "/s/z/a.c", "/b/x/y/a.c": "/s/x/y/a.c"},
    ),
    "without a version only the one pair counts": (
        {
            "DBGSourcePathRemapping": {"/no": "/never"},
            "DBGBuildSourcePath": "/b",
            "DBGSourcePath": "/s",
        },
        {"/no/a.c": "/no/a.c", "/b/a.c": "/s/a.c", "/b": "/s"},
    ),
    "what makes no sense is passed over": (
        {"DBGVersion": ["3"], "DBGSourcePathRemapping": 7, "DBGBuildSourcePath": 1},
        {"/b/a.c": "/b/a.c"},
    ),
}


@pytest.mark.parametrize("example", REMAPPINGS.values(), ids=REMAPPINGS)
def test_source_paths_are_remapped_by_the_property_list(tmp_path, example):
    """As LLDB reads DBGSourcePathRemapping."""
    document, paths = example
    dwarf = write_dsym(tmp_path / "X.dSYM", "X", dwarf_file(OURS))
    name = f"{str(OURS).upper()}.plist"
    (dwarf.parent.parent / name).write_bytes(property_list(document))

    found = ImageResolver.of(tmp_path).files(image_at("/X")).lines
    assert isinstance(found, DebugFile)
    assert paths == {path: found.source_paths.now(path) for path in paths}


@pytest.mark.parametrize(
    "data", [b"", b"<plist><dict>", b"bplist00" + bytes(40), b"\xff" * 100], ids=repr
)
def test_a_malformed_property_list_does_not_affect_the_dwarf(tmp_path, data):
    """Paths are as recorded; the search has the reason."""
    dwarf = write_dsym(tmp_path / "X.dSYM", "X", dwarf_file(OURS))
    path = dwarf.parent.parent / f"{str(OURS).upper()}.plist"
    path.write_bytes(data)

    search = ImageResolver.of(tmp_path).files(image_at("/X"))
    assert isinstance(search.lines, DebugFile)
    assert search.lines.source_paths.now("/b/a.c") == "/b/a.c"
    assert any(str(path) in str(attempt) for attempt in search.attempts)


def test_spotlight_is_searched_for_the_uuid(tmp_path):
    """``mdfind`` prints a bundle or an archive; this was not run on a Mac."""
    dwarf = write_dsym(tmp_path / "X é.xcarchive/dSYMs/X.app.dSYM", "X", dwarf_file(OURS))
    for answer in (tmp_path / "X é.xcarchive", dwarf.parents[3]):
        asked = []

        def run(query, answer=answer, asked=asked):
            asked.append(query)
            return b"/nowhere/else.dSYM\0" + bytes(answer) + b"\0"

        places = SearchPath(spotlight=Spotlight(run))
        found = ImageResolver(places).files(image_at("/X")).lines
        assert isinstance(found, DebugFile)
        assert (str(dwarf), FoundBy.SPOTLIGHT) == (found.path, found.found_by)
        assert [f"com_apple_xcode_dsym_uuids == {str(OURS).upper()}"] == asked


def test_spotlight_is_not_searched_without_need(tmp_path):
    """The system's own images have no dSYMs, and there are hundreds of them."""
    asked = []
    places = SearchPath(spotlight=Spotlight(asked.append))

    assert FrameStatus.MISSING_FILE is ImageResolver(places).files(image_at("/X")).lines
    assert len(asked) == 1
    assert (
        FrameStatus.MISSING_FILE
        is ImageResolver(places).files(image_at("/usr/lib/libX.dylib")).lines
    )
    write_dsym(tmp_path / "X.dSYM", "X", dwarf_file(OURS))
    given = SearchPath([str(tmp_path)], spotlight=Spotlight(asked.append))
    assert isinstance(ImageResolver(given).files(image_at("/X")).lines, DebugFile)
    assert len(asked) == 1


@settings(max_examples=100, deadline=20_000, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_files_are_a_status(tmp_path, data):
    """Any bytes of a dSYM, its property list and the binary."""
    good = {
        "prog": ThinFile(uuid=OURS, symbols=(BuiltSymbol("/a.o", 1, 0x66, 0),)).build(),
        "prog.dSYM/Contents/Resources/DWARF/prog": fat_of(
            [BuiltPart(CPU_TYPE_ARM64, 0, dwarf_file(OURS))]
        ),
        f"prog.dSYM/Contents/Resources/{str(OURS).upper()}.plist": property_list({"a": "b"}),
    }
    for name, content in good.items():
        changed = bytearray(content)
        for _ in range(data.draw(st.integers(0, 4))):
            at = data.draw(st.integers(0, min(len(changed), 0x1400) - 1))
            value = data.draw(st.binary(min_size=1, max_size=4) | st.just(b"\xff" * 4))
            changed[at : at + len(value)] = value
        write(tmp_path / name, bytes(changed))

    files = ImageResolver.of(tmp_path).files(image_at(tmp_path / "prog"))
    if isinstance(files.lines, DebugFile):
        assert files.lines.uuid == OURS
    assert files.attempts
