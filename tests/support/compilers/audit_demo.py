"""Build the app that ``machtrace audit run emulated:demo`` runs.

``python -m tests.support.compilers.audit_demo``: with the compiler and flags of the program of
``emulated:demo``; each image is a file of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from shutil import copyfile, copytree
from tempfile import TemporaryDirectory

from machtrace.targets.emulator import AUDITED_APP
from tests.support.compilers import demo

SOURCES = demo.SOURCES.with_name("audit-demo")
BUILT_WITH = SOURCES / "built-with"
_FRAMEWORKS = Path("Demo.app", "Frameworks")
_RUNTIME = Path("..", demo.SOURCES.name, "runtime.c")
_LIBRARY = ("-dynamiclib", "-Wl,-undefined,dynamic_lookup")
IMAGES: dict[Path, tuple[tuple[Path, ...], tuple[str, ...]]] = {
    Path("libDemoSystem.dylib"): (
        (Path("start.S"), _RUNTIME, Path("system.m")),
        (*_LIBRARY, "-Wl,-install_name,/usr/lib/libDemoSystem.dylib"),
    ),
    _FRAMEWORKS / "Analytics.framework" / "Analytics": (
        (Path("analytics.m"),),
        (*_LIBRARY, "-Wl,-install_name,@rpath/Analytics.framework/Analytics"),
    ),
    _FRAMEWORKS / "Advertising.framework" / "Advertising": (
        (Path("advertising.m"),),
        (*_LIBRARY, "-Wl,-install_name,@rpath/Advertising.framework/Advertising"),
    ),
    Path("Demo.app", "Demo"): (
        (Path("app.m"),),
        ("-Wl,-e,_main", "-Wl,-undefined,dynamic_lookup"),
    ),
}
"""By path in the output: the sources, and the linker's options."""


def build(output: Path) -> None:
    """Compile and link the images into a folder.

    Raises:
        OSError, subprocess.CalledProcessError: the compiler is not installed, or a source is bad.
    """
    with TemporaryDirectory() as name:
        work = Path(name) / SOURCES.name
        copytree(SOURCES, work)
        copytree(demo.SOURCES, work.with_name(demo.SOURCES.name))
        for path, (sources, options) in IMAGES.items():
            objects = [demo.compile_source(source, work) for source in sources]
            # The ad-hoc signature's identifier is the output's name.
            demo.link((*options, *objects, "-o", path.name), work)
            (output / path).parent.mkdir(parents=True, exist_ok=True)
            copyfile(work / path.name, output / path)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Build the app that is audited in the emulator.")
    parser.add_argument(
        "output", nargs="?", type=Path, default=AUDITED_APP, help="default: in place"
    )
    output: Path = parser.parse_args().output
    build(output)
    if output == AUDITED_APP:
        BUILT_WITH.write_text(demo.compiler() + "\n")


if __name__ == "__main__":
    _main()
