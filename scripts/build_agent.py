#!/usr/bin/env python3
"""Build the agent for Linux, macOS and iOS, on any machine that has the package ziglang.

``python scripts/build_agent.py [--output build/agent] [linux] [apple]``, or ``make agent``, builds
libraries for Linux; and for Apple's systems a framework and a static library, each in an
xcframework, and a Swift package of both. Warnings are errors. Exports, imports and sizes are
checked. The same sources and compiler give the same bytes.

An xcframework has the layout of ``xcodebuild -create-xcframework``: ``Info.plist`` of format 1.0
with a library for each system, whose folder is named after it and its architectures.
"""

from __future__ import annotations

import argparse
import os
import plistlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory

from machtrace.formats.elf import symtab as elf_symtab
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fat import parse_slices
from machtrace.formats.macho.structs import FAT_ARCH, FAT_MAGIC, N_EXT, N_PEXT
from machtrace.formats.macho.tables import symtab as macho_symtab

PROJECT = Path(__file__).resolve().parents[1]
HEADERS = PROJECT / "agent" / "include"

# --- what is compiled, and how ---

OPTIONS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-omit-frame-pointer")
LIBRARY = "-DMACHTRACE_AGENT_LIBRARY"
"""The agent is an image of its own."""
WARNINGS = (
    *("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wstrict-prototypes"),
    *("-Wmissing-prototypes", "-Wvla", "-Werror"),
)
INCLUDE = tuple(f"-I{PROJECT / folder}" for folder in ("agent/include", "agent", "native"))
_DYNAMIC = Struct("<2Q")
_DT_FLAGS_1, _DF_1_INITFIRST = 0x6FFFFFFB, 0x20
SIGNED_POINTERS = (
    *("-fptrauth-returns", "-fptrauth-calls", "-fptrauth-auth-traps", "-fptrauth-intrinsics"),
)
"""Options of arm64e on Apple's systems."""


def _files(folder: str) -> list[str]:
    paths = [path for path in (PROJECT / folder).iterdir() if path.suffix in {".c", ".S"}]
    return sorted(path.relative_to(PROJECT).as_posix() for path in paths)


def _native(system: str, common: str, core: Sequence[str]) -> list[str]:
    files = [f"native/inprocess/core/{system}/{name}.c" for name in core]
    return ["native/walk/frame_records.c", f"native/common/{system}/{common}.c", *files]


CORE = tuple(_files("agent"))
WATCHDOG = ("watchdog", "watchdog_copy", "watchdog_polls", "watchdog_suspects")
"""The watchdog's core, but for its record: agent/linux/watchdog.c has that."""
LINUX = (
    *(*CORE, *_files("agent/linux")),
    *_native("linux", "registers", ("capture", "copy", "images", "process", "thread_files")),
    *(
        f"native/inprocess/core/{name}.c"
        for name in (*WATCHDOG, "batches", "beacon", "python_chain", "ring")
    ),
)
DARWIN = (
    *(*CORE, *_files("agent/darwin")),
    *_native("darwin", "memory", ("capture", "copy", "images", "threads")),
)
HOOK_PATH = (
    *("agent/budget.c", "agent/counts.c", "agent/deep_stacks.c"),
    *("agent/hooks.c", "agent/recorder.c"),
    *(
        "agent/stack_tree.c",
        "agent/linux/thread.c",
        "agent/darwin/thread.c",
        "native/walk/frame_records.c",
    ),
)
"""Sources of what hooks run."""
NO_VECTORS = "-mgeneral-regs-only"
"""The option of these: hooks must not touch registers that have arguments."""

# --- what is built ---


@dataclass(frozen=True)
class Slice:
    """The agent for one system and architecture."""

    arch: str
    """As the system names it."""
    compile_target: str
    link_target: str | None
    """None where the linker does not know the architecture: no dynamic library."""


@dataclass(frozen=True)
class AppleSystem:
    """A library of an xcframework."""

    platform: str
    variant: str | None
    bundle_platform: str
    minimum: str
    slices: tuple[Slice, ...]

    def identifier(self, archs: Sequence[str]) -> str:
        """Return the folder's name."""
        suffix = f"-{self.variant}" if self.variant else ""
        return f"{self.platform}-{'_'.join(sorted(archs))}{suffix}"


LINUX_SLICES = (
    Slice("x86_64", "x86_64-linux-gnu.2.28", "x86_64-linux-gnu.2.28"),
    Slice("arm64", "aarch64-linux-gnu.2.28", "aarch64-linux-gnu.2.28"),
)


def _apple(arch: str, triple: str, target: str, variant: str = "") -> Slice:
    machine = "aarch64" if arch == "arm64" else arch
    link_target = None if arch == "arm64e" else f"{machine}-{target}{variant}"
    return Slice(arch, f"{arch}-apple-{triple}{variant}", link_target)


APPLE_SYSTEMS = (
    AppleSystem(
        *("macos", None, "MacOSX", "11.0"),
        tuple(_apple(arch, "macos11.0", "macos.11.0") for arch in ("arm64", "arm64e", "x86_64")),
    ),
    AppleSystem(
        *("ios", None, "iPhoneOS", "13.0"),
        tuple(_apple(arch, "ios13.0", "ios.13.0") for arch in ("arm64", "arm64e")),
    ),
    AppleSystem(
        *("ios", "simulator", "iPhoneSimulator", "14.0"),
        tuple(_apple(arch, "ios14.0", "ios.14.0", "-simulator") for arch in ("arm64", "x86_64")),
    ),
)
MODULE = "Machtrace"
MAX_BYTES = {"library": 250_000, "archive": 380_000}
"""Limits for one architecture."""

REQUIRED_REASONS = {
    "NSPrivacyAccessedAPICategoryFileTimestamp": ("C617.1", {"stat", "fstat", "lstat", "fstatat"}),
    "NSPrivacyAccessedAPICategorySystemBootTime": ("35F9.1", {"mach_absolute_time"}),
    "NSPrivacyAccessedAPICategoryDiskSpace": ("E174.1", {"statfs", "fstatfs", "statvfs"}),
}
"""Apple's required-reason API: the category's reason that the agent has, and its functions."""

MODULE_MAP = f"""framework module {MODULE} {{
    umbrella header "machtrace.h"
    export *
}}
"""
SWIFT_PACKAGE = f"""// swift-tools-version:5.5
import PackageDescription

// {MODULE} is a framework, {MODULE}Static a static library: import {MODULE}.
let package = Package(
    name: "{MODULE}",
    platforms: [.macOS(.v11), .iOS(.v13)],
    products: [
        .library(name: "{MODULE}", targets: ["{MODULE}"]),
        .library(name: "{MODULE}Static", targets: ["{MODULE}Static"]),
    ],
    targets: [
        .binaryTarget(name: "{MODULE}", path: "{MODULE}.xcframework"),
        .binaryTarget(name: "{MODULE}Static", path: "{MODULE}Static.xcframework"),
    ]
)
"""


class BuildError(Exception):
    """The compiler failed, or a file that it built is invalid."""


def exported_functions() -> frozenset[str]:
    """Return the functions of the header."""
    text = (HEADERS / "machtrace.h").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^MACHTRACE_EXPORT [^;(]*?(\w+)\(", text, re.MULTILINE))


# --- the compiler ---


def zig_folder() -> Path:
    """Return where the package ziglang is installed.

    Raises:
        ImportError: it is not.
    """
    import ziglang  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return Path(ziglang.__file__).parent


def run_zig(*arguments: object, cwd: Path | None = None, library: Path | None = None) -> str:
    """Return what one of zig's tools prints; it uses this library instead of its own.

    Raises:
        BuildError: it failed, or gave a warning.
    """
    command = [str(zig_folder() / "zig"), *map(str, arguments)]
    environment = os.environ if library is None else {**os.environ, "ZIG_LIB_DIR": str(library)}
    done = subprocess.run(  # noqa: S603
        command, check=False, capture_output=True, text=True, cwd=cwd, env=environment
    )
    if done.returncode != 0 or done.stderr:
        raise BuildError(f"{' '.join(command)}\n{done.stderr or done.returncode}")
    return done.stdout


def _compile(part: Slice, source: str, output: Path, *options: str) -> Path:
    is_apple = "apple" in part.compile_target
    if is_apple:
        library = zig_folder() / "lib"
        folders = (library / "include", library / "libc/include/any-darwin-any")
        system = ["clang", *(f"-isystem{folder}" for folder in folders)]
        # Compact unwind information where it suffices, as Xcode requests it.
        system += ["-fno-asynchronous-unwind-tables", "-funwind-tables"]
    else:
        system = ["cc", "-g0", "-fno-sanitize=all", "-fno-stack-protector"]
    signed = SIGNED_POINTERS if part.arch == "arm64e" else ()
    vectors = (NO_VECTORS,) if source in HOOK_PATH else ()
    run_zig(
        *(*system, "-target", part.compile_target, *OPTIONS, *WARNINGS, *INCLUDE),
        *(*signed, *vectors, *options, "-c", PROJECT / source, "-o", output),
    )
    return output


def compile_slice(part: Slice, folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the objects of a static library, and of a dynamic one: one file differs."""
    sources = DARWIN if "apple" in part.compile_target else LINUX

    def compile_source(source: str) -> Path:
        return _compile(part, source, folder / (re.sub(r"[/.]", "_", source) + ".o"))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_source, sources))
    variant = folder / "library.o"
    _compile(part, "agent/imports.c", variant, LIBRARY)
    linked = [variant if path.name == "agent_imports_c.o" else path for path in objects]
    return objects, linked


# --- what the files have ---


def _symbols(path: Path) -> list[tuple[str, bool, bool]]:
    """Return global symbols without Mach-O's underscore: name, is it defined, is it exported."""
    data = path.read_bytes()
    if data[:4] == b"\x7fELF":
        contents = ElfFileContents(data, path.name)
        is_linked = path.suffix == ".so"
        parse = elf_symtab.parse_dynamic_symbols if is_linked else elf_symtab.parse_symbols
        elf = parse(contents)
        rows = [int(row) for row in elf.is_global.nonzero()[0]]
        visible = (elf.rows["st_other"] & 3) == 0
        names = [name.partition("@")[0] for name in elf.names(rows)]
        flags = [(bool(elf.is_defined[row]), bool(visible[row])) for row in rows]
    else:
        macho = macho_symtab.parse_symbols(MachOFileContents(data, path.name))
        kinds = macho.n_type
        rows = [int(row) for row in (((kinds & N_EXT) != 0) & ~macho.is_stab).nonzero()[0]]
        names = [name.removeprefix("_") for name in macho.names(rows)]
        flags = [(not macho.is_undefined[row], not kinds[row] & N_PEXT) for row in rows]
    return [(name, *both) for name, both in zip(names, flags, strict=True) if name]


def check_objects(objects: Iterable[Path]) -> set[str]:
    """Check the names that a program linked with them would have; return what they import.

    Raises:
        BuildError: a function is not the header's, or a name could be the program's.
    """
    symbols = [symbol for path in objects for symbol in _symbols(path)]
    defined = {name for name, is_defined, _ in symbols if is_defined}
    exported = {name for name, is_defined, is_visible in symbols if is_defined and is_visible}
    if exported != exported_functions():
        raise BuildError(f"exported: {sorted(exported ^ exported_functions())}")
    foreign = sorted(name for name in defined if not name.startswith("machtrace_"))
    if foreign:
        raise BuildError(f"names without machtrace_: {foreign}")
    return {name for name, is_defined, _ in symbols if not is_defined} - defined


def check_library(path: Path) -> None:
    """Check a dynamic library's exports.

    Raises:
        BuildError: a function is not the header's.
    """
    exported = {
        name for name, is_defined, is_visible in _symbols(path) if is_defined and is_visible
    }
    exported -= {"__dso_handle", "_mh_dylib_header"}  # which the linker defines
    if exported != exported_functions():
        raise BuildError(f"{path.name} exports {sorted(exported ^ exported_functions())}")


def check_load_commands(data: bytes, source: str) -> None:
    """Check the load commands of each slice of a Mach-O library.

    Raises:
        BuildError: a dylib is named twice, which dyld refuses since the SDKs of 2024.
    """
    for part in parse_slices(data, source):
        names = [dylib.name for dylib in MachOFileContents(part.data, source).image.load_dylibs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise BuildError(f"{source} names twice: {', '.join(twice)}")


def initialise_first(path: Path) -> None:
    """Mark a library as ``-z initfirst`` does, an option that zig's linker does not have.

    ``DT_FLAGS_1`` and ``DF_1_INITFIRST``: System V gABI's Sun extensions, ``elf.h``.

    Raises:
        BuildError: it has no such flags.
    """
    data = bytearray(path.read_bytes())
    image = ElfFileContents(bytes(data), str(path)).image
    section = next(each for each in image.sections if each.name == ".dynamic")
    for at in range(section.offset, section.offset + section.size, _DYNAMIC.size):
        tag, flags = _DYNAMIC.unpack_from(data, at)
        if tag == _DT_FLAGS_1:
            _DYNAMIC.pack_into(data, at, tag, flags | _DF_1_INITFIRST)
            path.write_bytes(data)
            return
    raise BuildError(f"{path.name} has no DT_FLAGS_1")


def _check_size(path: Path, kind: str, slices: int = 1) -> None:
    size = path.stat().st_size
    if size > MAX_BYTES[kind] * slices:
        raise BuildError(f"{path} has {size} bytes")


# --- files of Apple's systems ---


_REPLACED = (("", "libc"), ("libc", "darwin"), ("libc/darwin", "libSystem.tbd"))
"""zig's list of what libSystem exports: the folders from its library on, and what each has."""


def system_stubs(
    imports: Iterable[str], part: Slice, system: str, folder: Path
) -> tuple[Path, list[Path]]:
    """Write text stubs of the system's libraries that have the imports, for a linker.

    zig's linker always names the libSystem of its own library, which is that of macOS. A stub
    beside that would be a second load command for one dylib, which dyld refuses. So the stub of
    libSystem is in a folder that stands for zig's library. Return this, and the other stubs.

    ziglang has libSystem's list of exports for macOS. iOS has these functions, too: the list is
    the one that imports are checked against.

    Raises:
        BuildError: a function is not in the list.
    """
    wanted = {f"_{name}" for name in imports} - {"_dyld_stub_binder", "___dso_handle"}
    library = zig_folder() / "lib"
    text = library.joinpath(*_REPLACED[-1]).read_text(encoding="utf-8")
    exported = set(re.findall(r"[\w$]+", text))
    objc = {
        name for name in wanted - exported if re.match(r"_(objc|class|method|sel|object)_", name)
    }
    if wanted - exported - objc:
        raise BuildError(f"not in libSystem: {sorted(wanted - exported - objc)}")
    overlay = at = folder / "lib"
    for original, replaced in _REPLACED:
        at.mkdir()
        for path in (library / original).iterdir():
            if path.name != replaced:
                (at / path.name).symlink_to(path)
        at /= replaced
    targets = [f"{part.arch}-{system}"]
    _write_stub(at, "libSystem.B", [*sorted(wanted - objc), "dyld_stub_binder"], targets)
    stubs = [folder / "libobjc.A.tbd"] if objc else []
    for path in stubs:
        _write_stub(path, "libobjc.A", sorted(objc), targets)
    return overlay, stubs


def _write_stub(path: Path, name: str, symbols: Sequence[str], targets: Sequence[str]) -> None:
    lines = [
        *("--- !tapi-tbd", "tbd-version: 4", f"targets: [ {', '.join(targets)} ]"),
        *(f"install-name: '/usr/lib/{name}.dylib'", "current-version: 1", "exports:"),
        *(f"  - targets: [ {', '.join(targets)} ]", f"    symbols: [ {', '.join(symbols)} ]"),
        "...\n",
    ]
    path.write_text("\n".join(lines), encoding="utf-8")


def write_fat(slices: Sequence[tuple[bytes, bytes]], output: Path, alignment: int) -> None:
    """Write files of several architectures as one (``mach-o/fat.h``); one alone is copied.

    Each is given as its Mach-O header, for the processor, and its contents.
    """
    if len(slices) == 1:
        output.write_bytes(slices[0][1])
        return
    head = FAT_MAGIC.to_bytes(4, "big") + len(slices).to_bytes(4, "big")
    body, size = b"", 1 << alignment
    start = -(-(len(head) + len(slices) * FAT_ARCH.size) // size) * size
    for header, contents in slices:
        offset = start + len(body)
        processor = [int.from_bytes(header[at : at + 4], "little") for at in (4, 8)]
        row = (*processor, offset, len(contents), alignment)
        head += b"".join(value.to_bytes(4, "big") for value in row)
        body += contents + bytes(-len(contents) % size)
    end = start + len(body) - (-len(slices[-1][1]) % size)
    output.write_bytes((head.ljust(start, b"\0") + body)[:end])


def _archive(objects: Sequence[Path], output: Path, kind: str) -> Path:
    output.unlink(missing_ok=True)
    run_zig("ar", f"--format={kind}", "rcsD", output, *sorted(objects))
    return output


def _plist(path: Path, value: dict[str, object]) -> None:
    path.write_bytes(plistlib.dumps(value))


def _version() -> str:
    with (PROJECT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def privacy_manifest(imports: set[str]) -> dict[str, object]:
    """Return PrivacyInfo.xcprivacy: nothing is collected; which functions need a reason."""
    accessed = [
        {"NSPrivacyAccessedAPIType": category, "NSPrivacyAccessedAPITypeReasons": [reason]}
        for category, (reason, functions) in REQUIRED_REASONS.items()
        if functions & {name.partition("$")[0] for name in imports}
    ]
    return {
        "NSPrivacyTracking": False,
        "NSPrivacyTrackingDomains": [],
        "NSPrivacyCollectedDataTypes": [],
        "NSPrivacyAccessedAPITypes": accessed,
    }


def _write_framework(system: AppleSystem, folder: Path, imports: set[str]) -> Path:
    """Create a framework but for its binary; return where that belongs.

    On macOS a framework has versions, and links to the current one at its top.
    """
    root = folder / f"{MODULE}.framework"
    is_versioned = system.platform == "macos"
    contents = root / "Versions" / "A" if is_versioned else root
    resources = contents / "Resources" if is_versioned else contents
    for path in (contents / "Headers", contents / "Modules", resources):
        path.mkdir(parents=True, exist_ok=True)
    if is_versioned:
        (root / "Versions" / "Current").symlink_to("A")
        for name in (MODULE, "Headers", "Modules", "Resources"):
            (root / name).symlink_to(f"Versions/Current/{name}")
    shutil.copyfile(HEADERS / "machtrace.h", contents / "Headers" / "machtrace.h")
    (contents / "Modules" / "module.modulemap").write_text(MODULE_MAP, encoding="utf-8")
    minimum = "LSMinimumSystemVersion" if is_versioned else "MinimumOSVersion"
    information: dict[str, object] = {
        "CFBundleDevelopmentRegion": "en",
        "CFBundleExecutable": MODULE,
        "CFBundleIdentifier": "org.machtrace.agent",
        "CFBundleInfoDictionaryVersion": "6.0",
        "CFBundleName": MODULE,
        "CFBundlePackageType": "FMWK",
        "CFBundleShortVersionString": _version(),
        "CFBundleSupportedPlatforms": [system.bundle_platform],
        "CFBundleVersion": "1",
        minimum: system.minimum,
    }
    _plist(resources / "Info.plist", information)
    _plist(resources / "PrivacyInfo.xcprivacy", privacy_manifest(imports))
    return contents / MODULE


def _library_row(
    system: AppleSystem, archs: Sequence[str], library: str, binary: str, headers: str | None
) -> dict[str, object]:
    row: dict[str, object] = {
        "BinaryPath": binary,
        "LibraryIdentifier": system.identifier(archs),
        "LibraryPath": library,
        "SupportedArchitectures": sorted(archs),
        "SupportedPlatform": system.platform,
    }
    if headers is not None:
        row["HeadersPath"] = headers
    if system.variant is not None:
        row["SupportedPlatformVariant"] = system.variant
    return row


def _write_xcframework(root: Path, rows: list[dict[str, object]]) -> None:
    value = {
        "AvailableLibraries": rows,
        "CFBundlePackageType": "XFWK",
        "XCFrameworkFormatVersion": "1.0",
    }
    _plist(root / "Info.plist", value)


def _link_apple(
    system: AppleSystem, part: Slice, objects: Sequence[Path], imports: set[str], folder: Path
) -> Path:
    variant = f"-{system.variant}" if system.variant else ""
    library, stubs = system_stubs(imports, part, f"{system.platform}{variant}", folder)
    version = "Versions/A/" if system.platform == "macos" else ""
    install_name = f"@rpath/{MODULE}.framework/{version}{MODULE}"
    output = folder / f"{MODULE}.dylib"
    run_zig(
        *("cc", "-target", part.link_target, "-dynamiclib", "-nostdlib"),
        *(f"-Wl,-install_name,{install_name}", *objects, *stubs, "-o", output),
        library=library,
    )
    check_library(output)
    _check_size(output, "library")
    return output


def build_apple(output: Path) -> None:
    """Build both xcframeworks and the Swift package.

    Raises:
        BuildError: the compiler failed, or what it built is not as it must be.
    """
    shutil.rmtree(output, ignore_errors=True)
    dynamic, static = output / f"{MODULE}.xcframework", output / f"{MODULE}Static.xcframework"
    dynamic_rows, static_rows = [], []
    for system in APPLE_SYSTEMS:
        libraries, archives = {}, {}
        imports: set[str] = set()
        with TemporaryDirectory() as temporary:
            for part in system.slices:
                folder = Path(temporary) / part.arch
                folder.mkdir()
                objects, linked = compile_slice(part, folder)
                imports = check_objects(objects)
                header = objects[0].read_bytes()[:12]
                archive = _archive(objects, folder / "libmachtrace.a", "darwin")
                _check_size(archive, "archive")
                archives[part.arch] = (header, archive.read_bytes())
                if part.link_target is not None:
                    library = _link_apple(system, part, linked, imports, folder)
                    libraries[part.arch] = (header, library.read_bytes())
        folder = dynamic / system.identifier([*libraries])
        binary = _write_framework(system, folder, imports)
        write_fat([*libraries.values()], binary, 14)
        check_load_commands(binary.read_bytes(), str(binary))
        binary.chmod(0o755)
        name = binary.relative_to(folder).as_posix()
        framework = f"{MODULE}.framework"
        dynamic_rows.append(_library_row(system, [*libraries], framework, name, None))
        folder = static / system.identifier([*archives])
        shutil.copytree(HEADERS, folder / "Headers")
        name = "libmachtrace.a"
        write_fat([*archives.values()], folder / name, 3)
        static_rows.append(_library_row(system, [*archives], name, name, "Headers"))
    _write_xcframework(dynamic, dynamic_rows)
    _write_xcframework(static, static_rows)
    (output / "Package.swift").write_text(SWIFT_PACKAGE, encoding="utf-8")


# --- files of Linux ---


def build_linux(output: Path) -> None:
    """Build a shared and a static library of each architecture.

    Raises:
        BuildError: the compiler failed, or what it built is not as it must be.
    """
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(HEADERS, output / "include")
    for part in LINUX_SLICES:
        folder = output / part.arch
        folder.mkdir()
        with TemporaryDirectory() as temporary:
            objects, linked = compile_slice(part, Path(temporary))
            check_objects(objects)
            archive = _archive(objects, folder / "libmachtrace.a", "gnu")
            library = folder / "libmachtrace.so"
            run_zig(
                *(
                    "cc",
                    "-target",
                    part.link_target,
                    "-shared",
                    "-s",
                    "-Wl,-soname,libmachtrace.so",
                ),
                *(
                    "-Wl,-z,now",
                    "-Wl,-z,nodelete",
                    "-Wl,--gc-sections",
                    "-pthread",
                    *sorted(linked),
                    "-ldl",
                ),
                *("-o", library),
            )
            initialise_first(library)
        check_library(library)
        _check_size(library, "library")
        _check_size(archive, "archive")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what the arguments name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=PROJECT / "build" / "agent")
    parser.add_argument("systems", nargs="*", default=["linux", "apple"], metavar="linux|apple")
    options = parser.parse_args(arguments)
    builders = {"linux": build_linux, "apple": build_apple}
    if not builders.keys() >= set(options.systems):
        parser.error("the systems are linux and apple")
    try:
        for name in options.systems:
            builders[name](options.output / name)
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for path in sorted(options.output.rglob("*")):
        if path.is_file() and not path.is_symlink():
            sys.stdout.write(f"{path.stat().st_size:>9}  {path.relative_to(options.output)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
