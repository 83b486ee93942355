"""Libraries for Darwin of our own C sources, on any machine: Apple's headers come with ziglang.

The package's extensions built for macOS on any machine, by the project's own CMakeLists.txt.

The compiler, Apple's headers and the list of what the system's libraries export come with the
package ziglang; the headers of Python are this interpreter's, with a ``pyconfig.h`` that holds for
macOS as well as Linux. What is built cannot be run here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.arch import Arch
from tests.support.compilers.executables import run_zig

COMPILE_TARGETS = {
    Arch.ARM64: "aarch64-apple-macos13.0",
    Arch.X86_64: "x86_64-apple-macos13.0",
}
_LINK_TARGETS = {Arch.ARM64: "aarch64-macos.13.0", Arch.X86_64: "x86_64-macos.13.0"}


def header_options() -> tuple[str, ...]:
    """Return the compiler's options for Apple's headers.

    Raises:
        ImportError: the package ziglang is not installed.
    """
    import ziglang  # type: ignore[import-not-found, import-untyped, unused-ignore]

    library = Path(ziglang.__file__).parent / "lib"
    return (
        f"-isystem{library / 'include'}",
        f"-isystem{library / 'libc/include/any-darwin-any'}",
    )


def build_library(
    sources: Sequence[Path],
    output: Path,
    *,
    arch: Arch,
    includes: Sequence[Path],
    options: Sequence[str] = ("-O2",),
) -> Path:
    """Compile C sources and link them with libSystem to a dynamic library.

    Its calls are bound lazily, by stubs and ``dyld_stub_binder``.

    Args:
        sources: of C11.
        output: the library to make; objects and caches are left beside it.
        arch: ARM64 or X86_64.
        includes: folders of headers.
        options: clang's.

    Returns:
        ``output``.

    Raises:
        ImportError: the package ziglang is not installed.
        OSError, subprocess.CalledProcessError: it cannot be run, or a source is bad.
    """
    folder = output.with_suffix(".objects")
    folder.mkdir()
    run_zig(
        "clang",
        (
            *("-target", COMPILE_TARGETS[arch], "-std=c11", "-w", *options, *header_options()),
            *(f"-I{include}" for include in includes),
            *("-c", *map(str, sources)),
        ),
        folder,
    )
    objects = [str(folder / f"{source.stem}.o") for source in sources]
    target = _LINK_TARGETS[arch]
    # Without compiler-rt, which zig would compile first; libSystem would be looked up by name, too.
    options = ("-dynamiclib", "-nostdlib", "-Wl,-undefined,dynamic_lookup")
    run_zig("cc", ("-target", target, *options, "-o", str(output), *objects), folder)
    return output


_TARGETS = {Arch.ARM64: "aarch64-macos.13.0", Arch.X86_64: "x86_64-macos.13.0"}
_PROCESSORS = {Arch.ARM64: "arm64", Arch.X86_64: "x86_64"}
_EXPORTS_FOR = {Arch.ARM64: frozenset({"arm64-macos", "arm64e-macos"})}
"""Parts of libSystem.tbd that count; of x86_64 its own."""

# Both have the LP64 model, and the rest of the file is about libraries that headers do not use.
_PYCONFIG = """
#define ALIGNOF_SIZE_T 8
#define SIZEOF_DOUBLE 8
#define SIZEOF_FLOAT 4
#define SIZEOF_INT 4
#define SIZEOF_LONG 8
#define SIZEOF_LONG_LONG 8
#define SIZEOF_SHORT 2
#define SIZEOF_SIZE_T 8
#define SIZEOF_TIME_T 8
#define SIZEOF_VOID_P 8
#define SIZEOF_WCHAR_T 4
#define SIZEOF__BOOL 1
"""

# Zig's linker knows no bundles; a dynamic library is linked alike. It is linked without libraries,
# since zig would compile compiler-rt first, for half a minute: what is left to be imported is for
# the caller to compare with the system's list.
_COMPILER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = -bundle ] && argument=-dynamiclib
    set -- "$@" "$argument"
done
exec "{zig}" cc -target {target} -Werror -nostdlib -Wl,-undefined,dynamic_lookup "$@"
"""
_TOOLCHAIN = """
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR {processor})
set(CMAKE_C_COMPILER "{compiler}")
set(CMAKE_INSTALL_NAME_TOOL "{nothing}")
set(CMAKE_OSX_SYSROOT "" CACHE STRING "" FORCE)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
"""


def build_extensions(project: Path, folder: Path, arch: Arch) -> dict[str, Path]:
    """Build every extension that macOS has, with warnings as errors.

    Args:
        project: where CMakeLists.txt is.
        folder: to build in; there is nothing in it.
        arch: arm64 or x86_64.

    Returns:
        The files, by the extensions' names.

    Raises:
        subprocess.CalledProcessError: a source is invalid; ``stdout`` has the compiler's messages.
        OSError: a tool is not installed.
    """
    headers = folder / "include"
    shutil.copytree(sysconfig.get_paths()["include"], headers)
    (headers / "pyconfig.h").write_text(_PYCONFIG, encoding="utf-8")
    compiler = folder / "compiler"
    text = _COMPILER.format(zig=_zig_folder() / "zig", target=_TARGETS[arch])
    compiler.write_text(text, encoding="utf-8")
    compiler.chmod(0o755)
    toolchain = folder / "toolchain.cmake"
    processor, nothing = _PROCESSORS[arch], shutil.which("true")
    text = _TOOLCHAIN.format(processor=processor, compiler=compiler, nothing=nothing)
    toolchain.write_text(text, encoding="utf-8")
    cmake, made = _tool("cmake"), folder / "made"
    _run(
        *(cmake, "-S", str(project), "-B", str(made), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}",
        f"-DCMAKE_TOOLCHAIN_FILE={toolchain}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DPython_INCLUDE_DIR={headers}",
    )
    _run(cmake, "--build", str(made))
    return {path.name.partition(".")[0]: path for path in made.glob("*.so")}


def imported_symbols(path: Path) -> frozenset[str]:
    """Return a Mach-O's imports, with the underscores of its symbol table."""
    symbols = parse_symbols(MachOFileContents(path.read_bytes(), path.name))
    return frozenset(symbols.names((symbols.is_undefined & ~symbols.is_stab).nonzero()[0]))


def system_symbols(arch: Arch) -> frozenset[str]:
    """Return the exports of libSystem's parts on macOS, by ziglang's libSystem.tbd."""
    path = _zig_folder() / "lib/libc/darwin/libSystem.tbd"
    text = path.read_text(encoding="utf-8")
    wanted = _EXPORTS_FOR.get(arch, frozenset({f"{arch.value}-macos"}))
    symbols: set[str] = set()
    for part in re.finditer(
        r"- targets:\s*\[([^]]*)\](.*?)(?=- targets:|^---|\Z)", text, re.DOTALL | re.MULTILINE
    ):
        if wanted & set(_words(part[1].split(","))):
            for names in re.finditer(r"symbols:\s*\[([^]]*)\]", part[2]):
                symbols.update(_words(names[1].split(",")))
    return frozenset(symbols)


def _words(texts: Iterable[str]) -> list[str]:
    return [text.strip().strip("'\"") for text in texts]


def _tool(name: str) -> str:
    """Beside this interpreter, or by the path."""
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    found = shutil.which(name, path=places)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return found


def _zig_folder() -> Path:
    import ziglang  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return Path(ziglang.__file__).parent


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
