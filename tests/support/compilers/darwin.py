"""Libraries for Darwin of our own C sources, on any machine: Apple's headers come with ziglang."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from machtrace.model.arch import Arch
from tests.support.compilers.executables import run_zig

COMPILE_TARGETS = {
    Arch.ARM64: "aarch64-apple-macos13.0",
    Arch.X86_64: "x86_64-apple-macos13.0",
}
_LINK_TARGETS = {Arch.ARM64: "aarch64-macos.13.0", Arch.X86_64: "x86_64-macos.13.0"}


def header_options() -> tuple[str, ...]:
    """The compiler's options for Apple's headers.

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
