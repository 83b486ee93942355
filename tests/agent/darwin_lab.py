"""The agent's Darwin build and the lab's images, run in the emulated process."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.arch import Arch
from scripts.build_agent import DARWIN, INCLUDE
from tests.agent import spool_format
from tests.agent.build import PROGRAMS, PROJECT
from tests.agent.spool_format import Event, Nodes, Spool
from tests.support.compilers.darwin import header_options
from tests.support.compilers.executables import run_zig
from tests.support.emulated.darwin import EmulatedDarwin
from tests.support.emulated.dyld import symbols_of
from tests.support.emulated.process import EmulatedProcess, LoadedImage
from tests.support.lab.architectures import SignedPointer, as_arm64
from tests.support.writers.chained_program import (
    with_authenticating_stubs,
    with_chained_fixups,
    with_function_starts,
)

LAB = PROGRAMS / "darwin"
SPOOL_SIZE = 1 << 20
_TARGETS = {
    Arch.ARM64: ("arm64-apple-macos13.0", "aarch64-macos.13.0"),
    Arch.ARM64E: ("arm64e-apple-macos13.0", "aarch64-macos.13.0"),
    Arch.X86_64: ("x86_64-apple-macos13.0", "x86_64-macos.13.0"),
}
_SIGNING = ("-fptrauth-returns", "-fptrauth-calls", "-fptrauth-auth-traps", "-fptrauth-intrinsics")
_POINTERS = "__auth_ptr"
"""Section of pointers to functions, whose symbols the linker drops; key IA, no discriminator."""
_OBJC = ("-fno-objc-arc", "-fno-objc-convert-messages-to-runtime-calls")
_FLAGS = (
    "-O2",
    "-std=c11",
    "-fvisibility=hidden",
    "-fno-omit-frame-pointer",
    "-w",
    "-fswift-async-fp=always",
)


@dataclass(frozen=True)
class Image:
    """A built image."""

    file: Path
    signed: tuple[tuple[int, int, int, bool], ...] = ()
    """Pointers that dyld signs: Svma, key, discriminator, whether the address is mixed in."""


def _chained(file: Path, signed: Sequence[SignedPointer]) -> tuple[tuple[int, int, int, bool], ...]:
    """Give an image of arm64e chained fixups; return which pointers are signed."""
    data, slots = with_authenticating_stubs(file.read_bytes())
    contents = MachOFileContents(data, file.name)
    symbols = symbols_of(contents)
    how = {
        symbols[pointer.symbol] + pointer.offset: (
            pointer.key,
            pointer.discriminator,
            pointer.has_address_diversity,
        )
        for pointer in signed
        if pointer.section != _POINTERS
    }
    for section in contents.image.sections:
        if section.name == _POINTERS:
            how |= dict.fromkeys(range(section.address, section.end, 8), (0, 0, False))
    how |= dict.fromkeys(slots, (0, 0, True))
    file.write_bytes(with_chained_fixups(data, how))
    return tuple((svma, *rest) for svma, rest in how.items())


def make_image(
    folder: Path,
    name: str,
    sources: Sequence[Path],
    arch: Arch,
    *options: str,
    link: Sequence[str] = ("-dynamiclib",),
    is_chained: bool = False,
) -> Image:
    """Build an image, which imports what is not defined."""
    pytest.importorskip("ziglang", reason="ziglang carries Apple's headers")
    output = folder / name
    compile_target, link_target = _TARGETS[arch]
    flags = [*_FLAGS, *(_SIGNING if arch is Arch.ARM64E else ()), *INCLUDE, *header_options()]
    objects, signed = [], []
    try:
        for number, source in enumerate(sources):
            to = folder / f"{name}.{number}.o"
            objc = _OBJC if source.suffix == ".m" else ()
            command = ("-target", compile_target, *flags, *objc, *options, "-c", str(source))
            run_zig("clang", (*command, "-o", str(to)), folder)
            if arch is Arch.ARM64E:
                data, pointers = as_arm64(to.read_bytes())
                to.write_bytes(data)
                signed += pointers
            objects.append(str(to))
        linking = ("-target", link_target, "-nostdlib", "-Wl,-undefined,dynamic_lookup", *link)
        run_zig("cc", (*linking, "-o", str(output), *objects), folder)
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stderr)
    output.write_bytes(with_function_starts(output.read_bytes()))
    if arch is Arch.ARM64E:
        return Image(output, _chained(output, signed))
    if is_chained:
        output.write_bytes(with_chained_fixups(output.read_bytes()))
    return Image(output)


@dataclass(frozen=True)
class Lab:
    """The images of one architecture."""

    arch: Arch
    program: Image
    sdk: Image
    kit: Image
    sensor: Image
    objc: Image
    agent: Image
    late: Image
    plugins: tuple[Image, Image]
    is_chained: bool


def build_lab(folder: Path, arch: Arch, *, is_chained: bool = False) -> Lab:
    """Build all images; `is_chained`: with chained fixups, as those of arm64e always are."""
    folder.mkdir()
    agent = [PROJECT / source for source in DARWIN]
    build_image = partial(make_image, is_chained=is_chained)
    return Lab(
        arch=arch,
        is_chained=is_chained,
        sdk=build_image(folder, "libsdk.dylib", [LAB / "sdk.c"], arch),
        sensor=build_image(folder, "libsensor.dylib", [LAB / "sensor.m"], arch),
        objc=build_image(folder, "libobjc.dylib", [LAB / "objc.c", LAB / "msgsend.S"], arch),
        late=build_image(folder, "late.dylib", [LAB / "late.m"], arch),
        kit=build_image(folder, "libkit.dylib", [LAB / "kit.c"], arch),
        agent=build_image(folder, "libmachtrace.dylib", agent, arch, "-DMACHTRACE_AGENT_LIBRARY"),
        program=build_image(
            folder,
            "program",
            [LAB / name for name in ("start.S", "program.c", "hangs.c", "messages.m", "async.c")],
            arch,
            link=("-Wl,-e,_lab_start",),
        ),
        plugins=(
            build_image(folder, "plugin.dylib", [LAB / "plugin.c"], arch),
            build_image(folder, "other.dylib", [LAB / "plugin.c"], arch, "-DSTEP=2"),
        ),
    )


@dataclass
class Seen:
    """A call as the agent recorded it."""

    symbol: str
    thread: int
    stack: tuple[int, ...]
    event: Event


def symbol_of(rule: str) -> str:
    """Return the symbol of a watched function, as the symbol table has it."""
    return rule if "[" in rule else f"_{rule}"


@dataclass
class Run:
    """One run of the program."""

    process: EmulatedProcess
    darwin: EmulatedDarwin
    images: dict[str, LoadedImage]
    changed: dict[str, int] = field(default_factory=dict)
    """Bytes of images that differ from before the start, by the time."""
    spool: Spool | None = None
    path: Path = Path()
    """The spool's file."""
    taken: tuple[int, ...] = ()
    """The stack of another thread, as the agent returned it."""
    true: tuple[int, ...] = ()
    """That stack by calls and returns."""
    suspended: list[tuple[int, ...]] = field(default_factory=list)
    """The true stacks of threads when they were suspended."""

    def set_taken(self, arguments: Sequence[int]) -> int:
        """Read what the program has of another thread: its id, the depth and the frames."""
        address = arguments[0]
        words = [self.process.memory.word(address + 8 * index) for index in range(66)]
        self.taken = tuple(words[2 : 2 + words[1]])
        (other,) = (thread for thread in self.process.threads if thread.id == words[0])
        self.true = self.process.true_stack(other)
        return 0

    @property
    def seen(self) -> list[Seen]:
        """The calls of all threads, in their order."""
        assert self.spool is not None
        nodes = Nodes(self.spool)
        rules = {rule.number: rule for rule in spool_format.rules(self.spool).values()}
        return [
            Seen(
                symbol_of(rules[event.rule].symbol),
                event.thread,
                tuple(one for one in nodes.stack(event.stack) if one > _MARKS),
                event,
            )
            for event in self.spool.events
        ]


_MARKS = 1 << 16
"""Lower addresses are none of code."""
SCENARIOS = (
    *("calls", "arguments", "deep", "repeated", "plugins", "threads", "messages", "tasks"),
    *("another", "run_loop", "state_idle"),
)


def run(
    lab: Lab,
    spool: Path,
    scenario: str,
    *rules: str,
    count: int = 1,
    counts_instructions: bool = False,
    has_files: bool = True,
    flags: int = 0,
    processor_share: float = 0.0,
) -> Run:
    """Run one scenario of the program.

    `has_files`: whether it can read its images' files; `flags`: each rule's; `processor_share`: of
    one processor, that it uses by the kernel's count.
    """
    process = EmulatedProcess(lab.arch)
    darwin = EmulatedDarwin(process)
    darwin.processor_share = processor_share
    darwin.refuses = () if has_files else (".dylib", "program")
    process.watched = {*map(symbol_of, rules), "-[Base inherited:]", "+[Base shared:]"}
    result = Run(process, darwin, {}, path=spool)

    def load(image: Image, *, is_followed: bool = True) -> LoadedImage:
        path = str(image.file)
        result.images[image.file.name] = process.load(
            path, image.file, is_followed=is_followed, signed=image.signed
        )
        return result.images[image.file.name]

    load(lab.objc)
    load(lab.sdk)
    load(lab.kit)
    load(lab.sensor)
    load(lab.agent, is_followed=False)
    program = load(lab.program)
    process.images.reverse()  # the program is the first
    process.images.sort(key=lambda image: image is not program)
    for plugin in (*lab.plugins, lab.late):
        darwin.files[str(plugin.file)] = {"at": 0x1_E000_0000, "signed": plugin.signed}
    followed = [
        result.images[name]
        for name in ("program", "libsdk.dylib", "libkit.dylib", "libsensor.dylib")
    ]
    if counts_instructions:
        process.count_instructions(result.images["libmachtrace.dylib"])
    _set(process, program, "_lab_spool", str(spool).encode() + b"\0")
    plugins = (lab.late if scenario == "messages" else lab.plugins[0], lab.plugins[1])
    for symbol, plugin in zip(("_lab_plugin", "_lab_other_plugin"), plugins, strict=True):
        _set(process, program, symbol, str(plugin.file).encode() + b"\0")
    for number, rule in enumerate(rules):
        _set(process, program, "_lab_rules", rule.encode() + b"\0", 64 * number)
    _set(process, program, "_lab_scenario", SCENARIOS.index(scenario).to_bytes(8, "little"))
    _set(process, program, "_lab_flags", flags.to_bytes(8, "little"))
    _set(process, program, "_lab_count", count.to_bytes(8, "little"))
    before = _observe(result, followed)
    process.functions["_lab_taken"] = result.set_taken
    darwin.start(program.symbols["_lab_start"])
    now = _bytes_of(process, followed)
    result.changed["after"] = sum(a != b for a, b in zip(before, now, strict=True))
    if spool.exists():
        result.spool = spool_format.read(spool)
    return result


def _observe(result: Run, followed: Sequence[LoadedImage]) -> list[int]:
    """Follow what the program notes, and threads that are suspended; the bytes before the start."""
    before: list[int] = []

    def note(arguments: Sequence[int]) -> int:
        name = result.darwin.text(arguments[0])
        if name == "begin":
            before.extend(_bytes_of(result.process, followed))
        if name in ("before", "during"):
            now = _bytes_of(result.process, followed)
            result.changed[name] = sum(a != b for a, b in zip(before, now, strict=True))
        if name == "memory":
            result.darwin.footprint = arguments[1]
        return result.darwin.do_lab_note(arguments)

    suspend = result.process.functions["_thread_suspend"]

    def suspended(arguments: Sequence[int]) -> int:
        code = suspend(arguments)
        assert isinstance(code, int)
        result.suspended += [
            result.process.true_stack(thread)
            for thread in result.process.threads
            if thread.is_suspended
        ]
        return code

    result.process.functions["_thread_suspend"] = suspended
    result.process.functions["_lab_note"] = note
    return before


def _set(
    process: EmulatedProcess, image: LoadedImage, symbol: str, data: bytes, offset: int = 0
) -> None:
    process.memory.write(image.symbols[symbol] + offset, data)


def _bytes_of(process: EmulatedProcess, images: Sequence[LoadedImage]) -> list[int]:
    """The bytes of the images, without those of variables."""
    words: list[int] = []
    for image in images:
        for section in image.contents.image.sections:
            if section.name not in ("__bss", "__common", "__lab"):
                data = process.memory.read(section.address + image.slide, section.size)
                words += data
    return words


def instructions_of_a_hook(lab: Lab, folder: Path) -> float:
    """Return how many a call of a watched function adds, of a repeated stack of 35 frames."""
    totals = []
    for count in (1, 101):
        spool = folder / f"{count}.spool"
        result = run(lab, spool, "repeated", "sdk_read", count=count, counts_instructions=True)
        assert {len(seen.stack) for seen in result.seen} == {35}
        assert result.darwin.main is not None
        totals.append(result.process.instructions[result.darwin.main.id])
    return (totals[1] - totals[0]) / 100


if __name__ == "__main__":
    for architecture in (Arch.ARM64, Arch.ARM64E):
        with TemporaryDirectory() as name:
            built = build_lab(Path(name) / "images", architecture)
            cost = instructions_of_a_hook(built, Path(name))
            print(architecture.value, cost)  # noqa: T201
