"""Run examples/ios-like in the emulated process: ``python -m tests.agent.ios_like OUT.spool``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from machtrace.model.arch import Arch
from scripts.build_agent import DARWIN
from tests.agent.build import PROJECT
from tests.agent.darwin_lab import LAB, make_image
from tests.support.emulated.darwin import EmulatedDarwin
from tests.support.emulated.process import EmulatedProcess

EXAMPLE = PROJECT / "examples" / "ios-like"
METHODS = (
    "+[Location update:]",
    "+[Pasteboard read:]",
    "+[Identifier advertising:]",
    "-[Agreement accept]",
)


def run(folder: Path, spool: Path, arch: Arch) -> EmulatedProcess:
    """Build the images, and run the app; return its process, which has the true calls."""
    folder.mkdir(exist_ok=True)
    build = partial(make_image, folder, arch=arch)
    agent = [PROJECT / source for source in DARWIN]
    objc = build("libobjc.dylib", [LAB / "objc.c", LAB / "msgsend.S"])
    device = build("libdevice.dylib", [EXAMPLE / "device.m"])
    analytics = build("libanalytics.dylib", [EXAMPLE / "analytics.m"])
    advertising = build("libadvertising.dylib", [EXAMPLE / "advertising.m"])
    library = make_image(folder, "libmachtrace.dylib", agent, arch, "-DMACHTRACE_AGENT_LIBRARY")
    app = build("app", [LAB / "start.S", EXAMPLE / "app.m"], link=("-Wl,-e,_lab_start",))
    process = EmulatedProcess(arch)
    darwin = EmulatedDarwin(process)
    process.watched = set(METHODS)
    for image in (objc, device, analytics, library):
        process.load(
            str(image.file), image.file, is_followed=image is not library, signed=image.signed
        )
    program = process.load(str(app.file), app.file, is_followed=True, signed=app.signed)
    process.images.sort(key=lambda image: image is not program)
    darwin.files[str(advertising.file)] = {"at": 0x1_E000_0000, "signed": advertising.signed}
    for symbol, path in (("_app_spool", spool), ("_app_advertising", advertising.file)):
        process.memory.write(program.symbols[symbol], str(path).encode() + b"\0")
    error = darwin.start(program.symbols["_lab_start"])
    if error:
        raise OSError(error, "the agent does not start")
    return process


if __name__ == "__main__":
    output = Path(sys.argv[1]).absolute()
    run(output.with_suffix(".images"), output, Arch.ARM64)
