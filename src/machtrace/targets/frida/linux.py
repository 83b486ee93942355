"""A Linux process, through the script in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from errno import EPERM, errorcode

from machtrace.errors import FormatError, MachtraceError, TargetSpecError
from machtrace.formats.elf.core.registers import layout_for, read_registers
from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import ImageList
from machtrace.model.memory import MemoryRegion, RegionMemory, without_overlap
from machtrace.model.snapshot import (
    FileMapping,
    LinuxFacts,
    Problem,
    ProcessInfo,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from machtrace.targets.frida.agent import Fields, FridaAgent, FridaMemory, wrong
from machtrace.targets.frida.copies import (
    MAX_THREADS,
    not_listed,
    read_copies,
    stopped_early,
    why_not,
)
from machtrace.targets.linux.blocked import copy_waiting
from machtrace.targets.shared.elf_images import (
    FoundElf,
    LoaderFacts,
    find_elf_images,
    with_local_file,
)
from machtrace.targets.shared.image_copier import ImageCopier
from machtrace.targets.shared.paged_memory import PagedMemory
from machtrace.targets.shared.proc_maps import Mapping as MemoryMapping
from machtrace.targets.shared.proc_maps import address_width, parse_maps, stack_ranges
from machtrace.targets.shared.thread_copy import (
    SLEEP_LIMIT_NS,
    STOP_LIMIT_NS,
    CaptureFailure,
    CopiedThread,
    ThreadCopy,
    UncopiedThread,
)

_ARCHITECTURES = {"x64": Arch.X86_64, "ia32": Arch.I386, "arm64": Arch.ARM64, "arm": Arch.ARM}
_MAX_ID = (1 << 31) - 1
_MAX_VECTOR_SIZE = 1 << 12
_REASONS = dict(errorcode)


class FridaLinux:
    """Takes snapshots of a Linux process.

    Raises:
        TargetSpecError: its architecture is not supported.
        ConnectionLostError, RemoteProtocolError: the script does not respond properly.
        FormatError: what is mapped cannot be read.
    """

    def __init__(self, agent: FridaAgent, hello: Fields) -> None:
        arch = _ARCHITECTURES.get(hello.text("arch"))
        layout = None if arch is None else layout_for(arch)
        if arch is None or layout is None:
            raise TargetSpecError(
                f"unsupported process architecture: {hello.text('arch')}",
                remedy="choose a process of x86_64, i386, arm64 or arm",
            )
        self._agent = agent
        word = layout.words.size // len(layout.dwarf)
        self._layout = [word, layout.sp * word, layout.signal_sp]
        self._arch = arch
        value, parts = agent.ask("facts")
        facts = Fields(value, "facts")
        self._status = _status(facts.text("status"))
        self._arguments = facts.text("arguments").replace("\0", " ").rstrip()
        self._vector = b"".join(part.data for part in parts if part.name == "auxv")
        if len(self._vector) > _MAX_VECTOR_SIZE:
            raise wrong("an auxiliary vector too large", "facts", len(self._vector))
        mappings = parse_maps(facts.text("maps"), "/proc/self/maps")
        mask = PacMask.of_width(address_width(mappings)) if arch.is_arm64 else PacMask()
        self.process = ProcessInfo(
            pid=hello.number("pid", _MAX_ID),
            path=hello.text("program"),
            arch=arch,
            pointer_mask=mask,
        )
        self._memory = FridaMemory(agent)
        self._pages = PagedMemory(self._memory)
        self._copier = ImageCopier(self._memory, self._pages, arch, mask)
        self._files: Sequence[MemoryMapping] = ()
        self._images: tuple[FoundElf, ...] = ()
        self._may_allow = False
        self.hidden = 0
        """Threads of Frida's own that were last left out."""

    def threads(self) -> tuple[ThreadInfo, ...]:
        """List its threads, except Frida's own.

        Raises:
            ConnectionLostError, RemoteProtocolError: the script does not respond properly.
        """
        value, _ = self._agent.ask("threads")
        return tuple(self._listed(Fields({"threads": value}, "threads"))[0])

    def snapshot(self, threads: Collection[ThreadId] | None, stack_limit: int) -> Snapshot:
        """See :meth:`~machtrace.targets.base.Target.snapshot`."""
        taken = self._capture(threads, stack_limit)
        infos, new, copies, mappings = taken
        refused = any(
            isinstance(thread_copy, UncopiedThread)
            and thread_copy.why is CaptureFailure.REFUSED
            and thread_copy.errno == EPERM
            for thread_copy in copies.values()
        )
        if refused and not self._may_allow:
            # Only now, since it changes who may trace the process: see frida_linux.c.
            self._may_allow = True
            infos, new, copies, mappings = self._capture(threads, stack_limit)
        copied: list[ThreadSnapshot] = []
        interrupted: list[MemoryRegion] = []
        problems: list[Problem] = []
        for info in infos:
            copy = copies.get(info.id)
            if copy is None:
                continue
            if isinstance(copy, UncopiedThread):
                waiting = self._waiting(info, mappings, stack_limit)
                if waiting is not None:
                    copied.append(waiting)
                if not (info.id in new and copy.why is CaptureFailure.GONE):
                    problems.append(Problem(thread=info.id, error=why_not(copy, _REASONS)))
                continue
            try:
                copied.append(_thread(info, copy))
                interrupted += copy.stacks[1:]
            except FormatError as error:
                problems.append(Problem(thread=info.id, error=error))
        problems += not_listed(infos, threads)
        return self._result(mappings, copied, interrupted, problems)

    def snapshot_waiting(self, threads: Collection[int], stack_limit: int) -> Snapshot:
        """Copy those of ``threads`` that wait in the kernel; nothing is stopped.

        Raises:
            ConnectionLostError, RemoteProtocolError: the script does not respond properly.
        """
        infos, _, _, mappings = self._capture((), stack_limit)
        waiting = [
            self._waiting(info, mappings, stack_limit) for info in infos if info.id in threads
        ]
        return self._result(mappings, [copy for copy in waiting if copy is not None], [], [])

    def _result(
        self,
        mappings: tuple[MemoryMapping, ...],
        copied: Sequence[ThreadSnapshot],
        interrupted: Sequence[MemoryRegion],
        problems: list[Problem],
    ) -> Snapshot:
        stacks = [*(thread_copy.stack for thread_copy in copied), *interrupted]
        used = self._images_now(mappings, copied, stacks, problems)
        return Snapshot(
            process=self.process,
            threads=tuple(copied),
            images=ImageList(thread_copy.image for thread_copy in self._images),
            memory=RegionMemory(without_overlap(stacks, used)),
            problems=tuple(problems),
            linux=self._facts(mappings),
        )

    # --- threads ---

    def _capture(
        self, threads: Collection[ThreadId] | None, stack_limit: int
    ) -> tuple[list[ThreadInfo], set[int], dict[int, ThreadCopy], tuple[MemoryMapping, ...]]:
        value, parts = self._agent.ask(
            "capture",
            {
                "ids": None if threads is None else sorted(threads),
                "stackLimit": stack_limit,
                "stopLimit": STOP_LIMIT_NS,
                "sleepLimit": SLEEP_LIMIT_NS,
                "mayAllow": self._may_allow,
                "layout": self._layout,
            },
        )
        fields = Fields(value, "capture")
        infos, new = self._listed(fields)
        wanted = [info.id for info in infos if threads is None or info.id in threads]
        copies = read_copies(parts, set(wanted))
        if len(copies) < len(wanted):
            raise stopped_early(fields.number("error", _MAX_ID))
        return infos, new, copies, parse_maps(fields.text("maps"), "/proc/self/maps")

    def _listed(self, fields: Fields) -> tuple[list[ThreadInfo], set[int]]:
        """List the process's threads, and which of them started during the capture."""
        rows = fields.rows("threads", MAX_THREADS)
        infos: list[ThreadInfo] = []
        new: set[int] = set()
        self.hidden = 0
        for row in rows:
            if row.flag("isOwn"):
                self.hidden += 1
                continue
            number = row.number("id", _MAX_ID)
            if row.has("isNew") and row.flag("isNew"):
                new.add(number)
            infos.append(
                ThreadInfo(
                    id=ThreadId(number),
                    index=len(infos) + 1,
                    name=row.text("name") or None,
                    is_main=number == self.process.pid,
                )
            )
        return infos, new

    def _waiting(
        self, info: ThreadInfo, mappings: Sequence[MemoryMapping], stack_limit: int
    ) -> ThreadSnapshot | None:
        """Copy what is available of a thread that cannot be stopped, if it waits in the kernel."""
        ends = list(stack_ranges(mappings)[1::2])

        def range_end(sp: int) -> int:
            upto = bisect_right(ends, sp)
            return ends[upto] if upto < len(ends) else sp

        def read_syscall() -> str:
            value = self._agent.ask("waiting", info.id).value
            return value if isinstance(value, str) else ""

        return copy_waiting(info, self._arch, read_syscall, self._memory, range_end, stack_limit)

    # --- images ---

    def _images_now(
        self,
        mappings: Sequence[MemoryMapping],
        copied: Sequence[ThreadSnapshot],
        stacks: Sequence[MemoryRegion],
        problems: list[Problem],
    ) -> list[MemoryRegion]:
        """Find the images; the bytes of those in use that no file here has."""
        try:
            # Stacks and heaps come and go; images are of files.
            files = [mapping for mapping in mappings if mapping.is_file]
            if files != self._files:
                self._find_images(mappings)
                self._files = files
            elves = {mapping.image.load_address: mapping.elf for mapping in self._images}
            values = (
                v
                for mapping in copied
                for v in (mapping.registers.pc, *mapping.registers.values)
                if v
            )
            images = ImageList(mapping.image for mapping in self._images)
            return self._copier.copy_used(images, elves, stacks, values)
        except MachtraceError as error:
            # The threads are not lost for it.
            problems.append(Problem(thread=None, error=error))
            return []

    def _find_images(self, mappings: Sequence[MemoryMapping]) -> None:
        self._pages.forget()
        facts = LoaderFacts(
            arch=self._arch,
            auxiliary_vector=self._vector,
            libraries=None,
            mappings=mappings,
            program=self.process.path,
        )
        found = self._pages.gather(lambda: find_elf_images(facts, self._pages))
        self._images = self._pages.gather(
            lambda: tuple(with_local_file(one, self._pages) for one in found)
        )

    def _facts(self, mappings: Sequence[MemoryMapping]) -> LinuxFacts:
        return LinuxFacts(
            auxiliary_vector=self._vector,
            file_mappings=tuple(
                FileMapping(mapping.start, mapping.end, mapping.offset, mapping.path)
                for mapping in mappings
                if mapping.is_file
            ),
            name=self._status.get("Name", "")[:15],
            arguments=self._arguments,
            parent=_first_number(self._status.get("PPid", "")),
            user=_first_number(self._status.get("Uid", "")),
            group=_first_number(self._status.get("Gid", "")),
        )


def _thread(info: ThreadInfo, copy: CopiedThread) -> ThreadSnapshot:
    return ThreadSnapshot(
        info=info,
        registers=read_registers(copy.registers, f"thread {info.id}"),
        stack=copy.stacks[0],
        taken_at_ns=copy.taken_at_ns,
        stopped_for_ns=copy.stopped_for_ns,
        native_registers=copy.registers,
    )


def _status(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in lines}


def _first_number(text: str) -> int:
    word = text.partition("\t")[0]
    return int(word) if word.isdecimal() and len(word) <= 10 else 0  # noqa: PLR2004 (digits)
