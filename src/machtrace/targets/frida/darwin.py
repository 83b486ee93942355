"""A Darwin process (macOS, iOS and similar), through the script in it.

No file of this machine has its images: they are read out of the process' memory, those of the
shared cache too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from machtrace.errors import FormatError, MachtraceError, MemoryReadError, TargetSpecError
from machtrace.formats.macho.contents import MachOMemoryContents
from machtrace.formats.macho.thread_state import STATE_HEADER, parse_thread_state
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import LayeredMemory, MemoryRegion, RegionMemory, without_overlap
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import (
    Problem,
    ProcessInfo,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from machtrace.targets.darwin.extension import RESULT_NAMES
from machtrace.targets.frida.agent import Fields, FridaAgent, FridaMemory
from machtrace.targets.frida.copies import (
    MAX_THREADS,
    not_listed,
    read_contexts,
    read_copies,
    stopped_early,
    why_not,
)
from machtrace.targets.shared.image_copier import ImageCopier
from machtrace.targets.shared.paged_memory import PagedMemory
from machtrace.targets.shared.thread_copy import CopiedThread, ThreadCopy, UncopiedThread

UNBOUNDED = 1 << 20
"""Maximum bytes of a stack whose end is unknown."""

_ARCHITECTURES = {"x64": Arch.X86_64, "arm64": Arch.ARM64}
_FLAVOURS = {"x64": 4, "arm64": 6}
"""``x86_THREAD_STATE64`` and ``ARM_THREAD_STATE64``."""
_USUAL_WIDTH = 47
_MIN_WIDTH, _MAX_WIDTH = 32, 64
_MAX_ID = (1 << 53) - 1
_MAX_ERROR = (1 << 32) - 1
_MAX_IMAGES = 1 << 14


class FridaDarwin:
    """Takes snapshots of a Darwin process.

    Raises:
        TargetSpecError: its architecture is not supported.
        ConnectionLostError, RemoteProtocolError: the script does not respond properly.
    """

    def __init__(self, agent: FridaAgent, hello: Fields) -> None:
        machine = hello.text("arch")
        if machine not in _ARCHITECTURES:
            raise TargetSpecError(
                f"unsupported process architecture: {machine}",
                remedy="choose a process of arm64 or x86_64",
            )
        self._agent = agent
        self._flavour = _FLAVOURS[machine]
        facts = Fields(agent.ask("facts").value, "facts")
        self._memory = FridaMemory(agent)
        self._pages = PagedMemory(self._memory)
        self._images: dict[tuple[int, str], BinaryImage | None] = {}
        main = Avma(facts.address("main"))
        program = hello.text("program")
        arch = self._arch_of(main, program) or _ARCHITECTURES[machine]
        mask = PacMask()
        if arch.is_arm64:
            width = facts.number("addressBits", _MAX_WIDTH)
            mask = PacMask.of_width(width if width >= _MIN_WIDTH else _USUAL_WIDTH)
        self.process = ProcessInfo(
            pid=hello.number("pid", _MAX_ID), path=program, arch=arch, pointer_mask=mask
        )
        self._copier = ImageCopier(self._memory, self._pages, arch, mask)
        self.hidden = 0
        """Threads of Frida's own that were last left out."""

    def threads(self) -> tuple[ThreadInfo, ...]:
        """List its threads, except Frida's own.

        Raises:
            ConnectionLostError, RemoteProtocolError: the script does not respond properly.
        """
        value, _ = self._agent.ask("threads")
        return tuple(self._listed(Fields({"threads": value}, "threads")))

    def snapshot(self, threads: Collection[ThreadId] | None, stack_limit: int) -> Snapshot:
        """See :meth:`~machtrace.targets.base.Target.snapshot`."""
        infos, copies, fields = self._capture(threads, stack_limit)
        copied: list[ThreadSnapshot] = []
        contexts: list[MemoryRegion] = []
        problems: list[Problem] = []
        for info in infos:
            copy = copies.get(info.id)
            if copy is None:
                continue
            try:
                if isinstance(copy, UncopiedThread):
                    raise why_not(copy, RESULT_NAMES)
                copied.append(self._thread(info, copy))
                contexts += [region for more in copy.stacks[1:] for region in read_contexts(more)]
            except MachtraceError as error:
                problems.append(Problem(thread=info.id, error=error))
        problems += not_listed(infos, threads)
        stacks = [region.stack for region in copied]
        images = ImageList()
        used: list[MemoryRegion] = []
        try:
            images = self._find_images(fields)
            values = (
                v for region in copied for v in (region.registers.pc, *region.registers.values) if v
            )
            used = self._copier.copy_used(images, {}, stacks, values)
        except MachtraceError as error:
            # The threads are not lost for it.
            problems.append(Problem(thread=None, error=error))
        return Snapshot(
            process=self.process,
            threads=tuple(copied),
            images=images,
            memory=LayeredMemory(
                (
                    RegionMemory(without_overlap(stacks, used)),
                    RegionMemory(without_overlap(contexts)),
                )
            ),
            problems=tuple(problems),
        )

    # --- threads ---

    def _capture(
        self, threads: Collection[ThreadId] | None, stack_limit: int
    ) -> tuple[list[ThreadInfo], dict[int, ThreadCopy], Fields]:
        value, parts = self._agent.ask(
            "capture",
            {
                "ids": None if threads is None else sorted(threads),
                "stackLimit": stack_limit,
                "pointerMask": f"{self.process.pointer_mask.bits & ((1 << 64) - 1):#x}",
                "unbounded": min(UNBOUNDED, stack_limit),
            },
        )
        fields = Fields(value, "capture")
        infos = self._listed(fields)
        wanted = [info.id for info in infos if threads is None or info.id in threads]
        copies = read_copies(parts, set(wanted))
        if len(copies) < len(wanted):
            raise stopped_early(fields.number("error", _MAX_ERROR))
        return infos, copies, fields

    def _listed(self, fields: Fields) -> list[ThreadInfo]:
        infos: list[ThreadInfo] = []
        self.hidden = 0
        for place, row in enumerate(fields.rows("threads", MAX_THREADS)):
            if row.flag("isOwn"):
                self.hidden += 1
                continue
            infos.append(
                ThreadInfo(
                    id=ThreadId(row.number("id", _MAX_ID)),
                    index=len(infos) + 1,
                    name=row.text("name") or None,
                    queue=row.text("queue") or None,
                    is_main=place == 0,  # Darwin lists the main thread first
                )
            )
        return infos

    def _thread(self, info: ThreadInfo, copy: CopiedThread) -> ThreadSnapshot:
        state = STATE_HEADER.pack(self._flavour, len(copy.registers) // 4) + copy.registers
        command = memoryview(bytes(8) + state)
        arch, mask = self.process.arch, self.process.pointer_mask
        registers = parse_thread_state(
            command, arch, mask=mask, source=f"thread {info.id}"
        ).registers
        return ThreadSnapshot(
            info=info,
            registers=_with_plain_sp(registers, mask),
            stack=copy.stacks[0],
            taken_at_ns=copy.taken_at_ns,
            stopped_for_ns=copy.stopped_for_ns,
        )

    # --- images ---

    def _find_images(self, fields: Fields) -> ImageList:
        places = list(
            dict.fromkeys(
                (row.address("base"), row.text("path"))
                for row in fields.rows("images", _MAX_IMAGES)
            )
        )
        new = [place for place in places if place not in self._images]
        if new:
            self._pages.forget()
            found = self._pages.gather(lambda: [self._image(*place) for place in new])
            self._images |= dict(zip(new, found, strict=True))
        known = (self._images[place] for place in places)
        return ImageList(image for image in known if image is not None)

    def _image(self, base: int, path: str) -> BinaryImage | None:
        contents = self._contents(Avma(base), path)
        text = None if contents is None else contents.image.text_segment
        if contents is None or text is None:
            return None
        return BinaryImage(
            path=path,
            uuid=contents.image.uuid,
            arch=contents.image.header.arch or self.process.arch,
            format=ImageFormat.MACHO,
            load_address=Avma(base),
            header_svma=text.vmaddr,
            size=min(text.vmsize, (1 << 64) - base),
        )

    def _contents(self, base: Avma, path: str) -> MachOMemoryContents | None:
        try:
            return MachOMemoryContents(self._pages, base, path)
        except (FormatError, MemoryReadError):
            return None

    def _arch_of(self, base: Avma, path: str) -> Arch | None:
        contents = self._pages.gather(lambda: self._contents(base, path))
        return None if contents is None else contents.image.header.arch


def _with_plain_sp(registers: RegisterSet, mask: PacMask) -> RegisterSet:
    """Return ``registers`` with an unsigned stack pointer: arm64e's are signed when read."""
    number = registers.arch.registers.sp
    values: Sequence[int | None] = registers.values
    stripped = [
        mask.strip(value) if place == number and value is not None else value
        for place, value in enumerate(values)
    ]
    return replace(registers, values=tuple(stripped))
