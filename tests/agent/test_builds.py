"""The agent builds without warnings by other compilers, and its header for other languages."""

from __future__ import annotations

import platform
import plistlib
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fat import parse_slices
from scripts import build_agent
from tests.agent.build import PROJECT

pytestmark = pytest.mark.peer

HEADER = PROJECT / "agent" / "include" / "machtrace.h"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file of every system, built with warnings as errors."""
    pytest.importorskip("ziglang", reason="ziglang has the compilers")
    folder = tmp_path_factory.mktemp("agent-packages")
    assert build_agent.main(["--output", str(folder)]) == 0
    return folder


def test_each_library_has_the_architectures_that_the_property_list_states(output: Path) -> None:
    for bundle in ("Machtrace", "MachtraceStatic"):
        root = output / "apple" / f"{bundle}.xcframework"
        value = plistlib.loads((root / "Info.plist").read_bytes())
        assert value["CFBundlePackageType"] == "XFWK"
        rows = value["AvailableLibraries"]
        folders = {path.name for path in root.iterdir() if path.is_dir()}
        assert {row["LibraryIdentifier"] for row in rows} == folders
        for row in rows:
            folder = root / row["LibraryIdentifier"]
            assert (folder / row["LibraryPath"]).exists()
            archs = row["SupportedArchitectures"]
            binary = (folder / row["BinaryPath"]).read_bytes()
            assert _processors(binary) == [_PROCESSORS[arch] for arch in archs] or len(archs) == 1
            headers = folder / row.get("HeadersPath", f"{row['LibraryPath']}/Headers")
            assert (headers / "machtrace.h").read_bytes() == HEADER.read_bytes()


_PROCESSORS = {"arm64": (0x0100000C, 0), "arm64e": (0x0100000C, 2), "x86_64": (0x01000007, 3)}


def _processors(binary: bytes) -> list[tuple[int, int]]:
    """Return the processors of a fat file; each contents is a Mach-O file or an archive."""
    rows = []
    for at in range(8, 8 + 20 * int.from_bytes(binary[4:8], "big"), 20):
        cpu, subtype, offset, size, bits = struct.unpack_from(">5I", binary, at)
        if binary[:4] != bytes.fromhex("cafebabe"):
            return []
        assert offset % (1 << bits) == 0
        assert binary[offset:][:4] in {b"!<ar", bytes.fromhex("cffaedfe")}
        assert offset + size <= len(binary)
        rows.append((cpu, subtype & 0xFFFFFF))
    return rows


def test_frameworks_are_images_of_their_system(output: Path) -> None:
    root = output / "apple" / "Machtrace.xcframework"
    platforms = {
        "macos-arm64_x86_64": "macos",
        "ios-arm64": "ios",
        "ios-arm64_x86_64-simulator": "iossimulator",
    }
    for folder, name in platforms.items():
        data = (root / folder / "Machtrace.framework" / "Machtrace").read_bytes()
        for part in parse_slices(data, folder):
            image = MachOFileContents(part.data, folder).image
            assert image.build_version is not None
            assert image.build_version.platform.value == name


def test_each_slice_names_each_dylib_once(output: Path) -> None:
    """Current versions of dyld refuse a library that names one twice."""
    binaries = [*output.glob("apple/Machtrace.xcframework/*/Machtrace.framework/Machtrace")]
    assert len(binaries) == 3
    for binary in binaries:
        for part in parse_slices(binary.read_bytes(), str(binary)):
            dylibs = MachOFileContents(part.data, str(binary)).image.load_dylibs
            assert [dylib.name for dylib in dylibs] == ["/usr/lib/libSystem.B.dylib"]


def _library_of(*dylibs: bytes) -> bytes:
    """Return a library for arm64 that has these load commands alone (``mach-o/loader.h``)."""
    commands = b""
    for name in dylibs:
        size = 24 + (len(name) + 8) // 8 * 8
        commands += struct.pack("<6I", 0xC, size, 24, 2, 1, 1) + name.ljust(size - 24, b"\0")
    head = struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 6, len(dylibs), len(commands), 0, 0)
    return head + commands


def test_a_library_that_names_a_dylib_twice_fails_the_build(tmp_path: Path) -> None:
    names = b"/usr/lib/libSystem.B.dylib", b"/usr/lib/libobjc.A.dylib"
    right, wrong = _library_of(*names), _library_of(*names, names[0])
    build_agent.check_load_commands(right, "right")
    with pytest.raises(build_agent.BuildError, match="names twice: /usr/lib/libSystem"):
        build_agent.check_load_commands(wrong, "wrong")
    fat, header = tmp_path / "fat", wrong[:12].replace(b"\x0c", b"\x07", 1)
    build_agent.write_fat([(right[:12], right), (header, header + wrong[12:])], fat, 14)
    with pytest.raises(build_agent.BuildError, match="names twice"):
        build_agent.check_load_commands(fat.read_bytes(), "fat")


def test_a_second_build_gives_the_same_bytes(output: Path, tmp_path: Path) -> None:
    assert build_agent.main(["--output", str(tmp_path)]) == 0
    files = [path for path in sorted(output.rglob("*")) if path.is_file()]
    assert len(files) > 30
    for path in files:
        assert (tmp_path / path.relative_to(output)).read_bytes() == path.read_bytes(), path


def test_the_built_library_records_where_it_is_preloaded(output: Path, tmp_path: Path) -> None:
    if not sys.platform.startswith("linux") or platform.machine() not in {"x86_64", "aarch64"}:
        pytest.skip("Linux on x86-64 or arm64")
    machine = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
    spool = tmp_path / "app.spool"
    environment = {
        "LD_PRELOAD": str(output / "linux" / machine / "libmachtrace.so"),
        "MACHTRACE_WATCH": "getenv,fopen,open,setlocale",
        "MACHTRACE_SPOOL": str(spool),
    }
    done = subprocess.run(["/bin/ls", "/"], check=True, capture_output=True, env=environment)
    assert done.stderr == b""
    assert spool.stat().st_size == 16 << 20


def exported() -> list[str]:
    return sorted(build_agent.exported_functions())


def test_the_documented_command_builds_a_library_with_the_header_s_functions(
    tmp_path: Path,
) -> None:
    if shutil.which("cc") is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler for Linux")
    text = (PROJECT / "docs" / "agent.md").read_text()
    command = text.split("```sh\n")[1].split("```")[0]
    output = tmp_path / "libmachtrace.so"
    command = command.replace("-o libmachtrace.so", f"-o {output} -Werror")
    subprocess.run(["sh", "-c", command], check=True, cwd=PROJECT)
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(output)], check=True, capture_output=True, text=True
    ).stdout
    assert sorted(line.split()[-1] for line in listing.splitlines()) == sorted(exported())
    assert output.stat().st_size < 220_000


@pytest.mark.parametrize(
    ("compiler", "options"),
    [
        ("cc", ["-std=c89", "-x", "c", "-Wno-long-long"]),
        ("c++", ["-std=c++98", "-x", "c++", "-Wno-long-long", "-Wno-variadic-macros"]),
        ("c++", ["-std=c++17", "-x", "c++"]),
    ],
)
def test_the_header_is_one_of_other_languages(compiler: str, options: list[str]) -> None:
    found = shutil.which(compiler)
    if found is None:
        pytest.skip(f"no {compiler}")
    command = [found, *options, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(HEADER)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_function_of_the_header_is_documented() -> None:
    text, names = HEADER.read_text(), exported()
    assert len(names) >= 8
    for name in names:
        assert f"@function {name}\n" in text


def test_the_package_builds_the_same_sources() -> None:
    """CMake and scripts/build_agent.py each have the list; agent/ as a whole is in both."""
    text = (PROJECT / "CMakeLists.txt").read_text()
    _, _, rest = text.partition("add_library(agent MODULE ${agent}\n")
    listed = set(rest.partition(")")[0].split())
    assert listed == {source for source in build_agent.LINUX if source.startswith("native/")}
