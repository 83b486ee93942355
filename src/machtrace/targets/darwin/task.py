"""Another process of this Mac, read through its task port.

Contexts of suspended Swift functions of a process that runs on meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from errno import EPERM, ESRCH, errorcode

from machtrace.errors import (
    TargetAccessError,
    TargetError,
    TargetGoneError,
    TargetSpecError,
    ThreadGoneError,
)
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.memory import LayeredMemory, MemoryReader, MemoryRegion, RegionMemory
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.snapshot import (
    Problem,
    ProcessInfo,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from machtrace.targets.base import ClosedWhenLeft
from machtrace.targets.darwin.copier import DarwinCopier, TaskCopier, task_error
from machtrace.targets.darwin.extension import (
    KERN_FAILURE,
    KERN_INVALID_ARGUMENT,
    TaskExtension,
    result_name,
    task_extension,
)
from machtrace.targets.darwin.images import TaskImageFinder, TaskImages
from machtrace.targets.darwin.memory import TaskMemory
from machtrace.targets.darwin.process import (
    ProcessFacts,
    Rights,
    process_info,
    read_process,
    read_rights,
)
from machtrace.targets.darwin.queues import queue_labels, served_queues
from machtrace.targets.darwin.threads import (
    ListedThread,
    described,
    listed_threads,
    main_thread,
    thread_snapshots,
)
from machtrace.targets.shared.image_copier import ImageCopier
from machtrace.targets.shared.paged_memory import PagedMemory
from machtrace.targets.shared.thread_copy import Activity

# --- Why macOS denies one process the task port of another, and the remedy ---
#
# The rules are in xnu, ``bsd/kern/kern_proc.c``: ``task_for_pid_posix_check``, which also queries
# the code signing policy (``mac_proc_check_get_task``) and taskgated; flags are those of
# ``osfmk/kern/cs_blobs.h`` and ``bsd/sys/csr.h``. :func:`refusal` is a function of facts.

_CS_GET_TASK_ALLOW = 0x4
_CS_RESTRICT = 0x800
_CS_RUNTIME = 0x10000
_CS_PLATFORM_BINARY = 0x4000000
_CSR_ALLOW_TASK_FOR_PID = 0x4

_ROOT = 0
_AS_ROOT = "run as root (sudo)"
_DEBUGGER = "com.apple.security.cs.debugger"
_ALLOW = "com.apple.security.get-task-allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRefusal:
    """The results of the three calls that open a task port."""

    read_errno: int
    """``task_read_for_pid``'s; ENOSYS before macOS 11."""
    control_result: int
    """``task_for_pid``'s."""
    name_result: int
    """``task_name_for_pid``'s, which takes fewer rights; 0 if it returned a port."""

    def __str__(self) -> str:
        """Return the results as text for the end of a message."""
        read = errorcode.get(self.read_errno, str(self.read_errno))
        return f"task_read_for_pid: {read}, task_for_pid: {result_name(self.control_result)}"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A rule that denies access."""

    what: str
    remedy: str
    """The user's next step."""


def refusal(pid: int, process: ProcessFacts, rights: Rights) -> Obstacle:
    """Return the first rule that denies access."""
    named = f"process {pid} ({process.name})" if process.name else f"process {pid}"
    is_root = rights.user == _ROOT
    if not is_root and process.users != {rights.user}:
        users = "/".join(str(user) for user in sorted(process.users))
        return Obstacle(
            f"{named} belongs to user {users}, not {rights.user}", f"{_AS_ROOT}, or as that user"
        )
    if not is_root and process.has_changed_user:
        return Obstacle(f"{named} has changed its user or group since it started", _AS_ROOT)
    return _protected(named, process, rights) or _unprivileged(named, process, rights)


def _protected(named: str, process: ProcessFacts, rights: Rights) -> Obstacle | None:
    """Return the rule that denies access to root, too."""
    if rights.integrity is not None and rights.integrity & _CSR_ALLOW_TASK_FOR_PID:
        return None
    signing = process.code_signing
    if signing & _CS_GET_TASK_ALLOW:
        return None
    if signing & _CS_PLATFORM_BINARY:
        return Obstacle(
            f"{named} is a part of macOS, which System Integrity Protection guards against root",
            "capture a program of your own (a Python from python.org or Homebrew, not "
            "/usr/bin/python3), or disable the protection where that can be justified "
            "(csrutil disable, in recovery)",
        )
    if signing & (_CS_RUNTIME | _CS_RESTRICT):
        return Obstacle(
            f"{named} is signed with the hardened runtime and without {_ALLOW}",
            "build it for debugging, or sign it again: codesign --force --sign - --entitlements "
            f"FILE PROGRAM, where FILE sets {_ALLOW} to true",
        )
    return None


def _unprivileged(named: str, process: ProcessFacts, rights: Rights) -> Obstacle:
    if rights.user == _ROOT or rights.has_debugger_entitlement:
        return Obstacle(
            f"the kernel denies access to {named}",
            "check for a sandbox that this process runs in, or for a security product that guards "
            "task ports; if it has only a debugger's entitlement, enable developer mode: "
            "sudo DevToolsSecurity -enable",
        )
    allowed = " that are not built for debugging" if process.code_signing else ""
    return Obstacle(
        f"this user may not access {named}: macOS gives the task ports of "
        f"programs{allowed} to root and to debuggers",
        f"{_AS_ROOT}; or sign this Python with the entitlement {_DEBUGGER}; or sign the "
        f"program with {_ALLOW}",
    )


def access_error(
    pid: int, process: ProcessFacts, rights: Rights, refused: PortRefusal
) -> TargetAccessError | TargetGoneError:
    """Return the error for a process whose task port was refused."""
    if refused.read_errno == ESRCH:
        return TargetGoneError(f"process {pid} has exited", pid=pid)
    obstacle = refusal(pid, process, rights)
    message = f"{obstacle.what} ({refused})"
    return TargetAccessError(message, pid=pid, errno=EPERM, remedy=obstacle.remedy)


# --- Another process of this Mac, read through its task port ---


def copy_contexts(
    memory: TaskMemory, threads: Sequence[ThreadSnapshot], process: ProcessInfo
) -> list[MemoryRegion]:
    """Copy the contexts that frames of ``threads`` lead to, as far as they are still theirs.

    They are read after the threads were resumed. A function whose frame is on the stack retains its
    context, and those of its callers; so what leads to a context is looked up again afterwards,
    and what is not there any more is left out.
    """
    if not threads:
        return []
    from machtrace.targets.shared.async_contexts import context_pointers, read_contexts

    mask = process.pointer_mask
    stacks = [thread.stack for thread in threads]
    pointers = context_pointers(stacks, (), process.arch)
    if not pointers:
        return []
    pages = PagedMemory(memory)
    pages.gather(lambda: read_contexts(pages, pointers, mask))
    ranges = [(stack.start, len(stack.data)) for stack in stacks]
    again = [
        MemoryRegion(stack.start, data)
        for stack, data in zip(stacks, memory.read_many(ranges), strict=True)
    ]
    still = set(context_pointers(again, (), process.arch))
    return read_contexts(pages, [thread for thread in pointers if thread in still], mask)


MAX_STACK = 1 << 28
"""Bytes of one stack; room for all is made before a thread is stopped."""

_ROUNDS = 4
"""Times that threads are looked for: a process can start them faster than they are copied."""


class DarwinTaskTarget(ClosedWhenLeft):
    """A process by its task port; see :class:`~machtrace.targets.base.Target`.

    Never run on a Mac: see ``docs/darwin.md`` for what was tested how.

    Nothing is attached between snapshots, and memory is never written. While threads are copied
    the whole process is suspended by a token that the kernel takes back should this process end
    meanwhile. What a snapshot has of dispatch queues' labels and of images was read while the
    process ran.

    Args:
        pid: its id.
        extension: what talks to the kernel; by default the one that is installed.

    Raises:
        TargetSpecError: it is this process, the kernel, a translated or 32-bit program, one for
            another CPU than this Python; or the extension is not here.
        TargetGoneError: there is no such process, or it has exited.
        TargetAccessError: macOS denies access; the remedy names the missing right.
    """

    def __init__(self, pid: int, *, extension: TaskExtension | None = None) -> None:
        self._check(pid)
        self._extension = task_extension() if extension is None else extension
        facts, rights = read_process(self._extension, pid), read_rights(self._extension)
        self._process = process_info(pid, facts, rights)
        self._pid = pid
        port, _, read_errno, control_result, name_result = self._extension.open_task(pid)
        self._port = port
        if not port:
            refused = PortRefusal(
                read_errno=read_errno, control_result=control_result, name_result=name_result
            )
            read_process(self._extension, pid)  # it may have exited meanwhile
            raise access_error(pid, facts, rights, refused)
        mask = self._process.pointer_mask
        self._memory = TaskMemory(self._extension, port)
        pages = PagedMemory(self._memory)
        self._finder = TaskImageFinder(self._memory, pages, self._process.arch)
        self._image_bytes = ImageCopier(self._memory, pages, self._process.arch, mask)
        self._copier: DarwinCopier = self._make_copier()

    def _check(self, pid: int) -> None:
        if pid <= 0:
            raise TargetSpecError(f"{pid} is not a process id")
        if pid == os.getpid():
            raise TargetSpecError(
                f"process {pid} is this process, which cannot suspend itself",
                remedy="use the target self, or capture it from another process",
            )

    def _make_copier(self) -> DarwinCopier:
        return TaskCopier(self._extension, self._pid, self._port, self._process.pointer_mask)

    @property
    def process(self) -> ProcessInfo:
        """Which one."""
        return self._process

    def threads(self) -> tuple[ThreadInfo, ...]:
        """See :meth:`~machtrace.targets.base.Target.threads`."""
        listed = self._listed()
        served = served_queues(self._memory, (one.queue_address for one in listed))
        labels = self._labels({one.id: served.get(one.queue_address, 0) for one in listed})
        return described(listed, labels, before=0, main=main_thread(listed))

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """See :meth:`~machtrace.targets.base.Target.snapshot`.

        Threads that are started meanwhile are copied too, if all are wanted.

        Raises:
            TargetGoneError: the process exited.
            TargetError: the kernel did not let it be suspended.
        """
        images = self._images()  # before: the process may exit while its threads are copied
        limit = max(0, min(stack_limit, MAX_STACK))
        copied, problems = self._copy(threads, limit)
        after = self._images()
        if len(after.images) or not len(images.images):
            images = after  # a thread may be in what was loaded meanwhile
        stacks = RegionMemory(one.stack for one in copied)
        contexts = RegionMemory(copy_contexts(self._memory, copied, self._process))
        return Snapshot(
            process=self._named(images),
            threads=tuple(copied),
            images=images.images,
            memory=LayeredMemory((stacks, contexts, self._image_memory(images, copied))),
            problems=(
                *problems,
                *(Problem(thread=None, error=error) for error in images.problems),
            ),
            shared_cache=images.shared_cache,
        )

    def close(self) -> None:
        """See :meth:`~machtrace.targets.base.Target.close`."""
        port, self._port = self._port, 0
        if port:
            self._extension.close_task(port)

    def observe_activity(self) -> None:
        """See :meth:`~machtrace.targets.base.ActivityTarget.observe_activity`.

        The list of threads has all that is needed, so that every snapshot has it.
        """

    # --- threads ---

    def _activity(self, thread: ListedThread) -> Activity:
        return thread.state, thread.cpu_ns

    def _listed(self) -> tuple[ListedThread, ...]:
        if not self._port:
            raise TargetGoneError(f"the target is closed: process {self._pid}", pid=self._pid)
        result, rows = self._extension.list_threads(self._port)
        if result in (KERN_FAILURE, KERN_INVALID_ARGUMENT):
            read_process(self._extension, self._pid)  # so it answers when the task is over
        if result:
            raise task_error(self._pid, result, "list the threads")
        return listed_threads(rows)

    def _left_out(self) -> int:
        """Return the id of a thread that is not copied with all others; 0 for none."""
        return 0

    def _copy(
        self, threads: Collection[ThreadId] | None, limit: int
    ) -> tuple[list[ThreadSnapshot], list[Problem]]:
        copied: list[ThreadSnapshot] = []
        problems: list[Problem] = []
        listed = self._listed()
        main = main_thread(listed)
        seen: set[int] = set()
        for _ in range(_ROUNDS):
            infos = [
                info
                for info in described(listed, {}, before=0, main=main)
                if info.id not in seen
                and (info.id != self._left_out() if threads is None else info.id in threads)
            ]
            activity = {one.id: self._activity(one) for one in listed}
            more, missing = self._copy_some(infos, limit, activity, are_new=bool(seen))
            copied += more
            problems += missing
            seen.update(listed_info.id for listed_info in listed)
            if threads is not None:
                break
            try:
                listed = self._listed()
            except TargetError:
                break  # what was copied of it stays
            if all(listed_info.id in seen for listed_info in listed):
                break
        for thread in sorted(set(threads or ()) - seen):
            gone = ThreadGoneError(f"thread {thread} does not exist", thread=thread)
            problems.append(Problem(thread=thread, error=gone))
        return copied, problems

    def _copy_some(
        self,
        infos: Sequence[ThreadInfo],
        limit: int,
        activity: Mapping[int, Activity],
        *,
        are_new: bool,
    ) -> tuple[list[ThreadSnapshot], list[Problem]]:
        if not infos:
            return [], []
        copies = self._copier.copy([info.id for info in infos], stack_limit=limit)
        labels = self._labels(copies.queues)
        named = [replace(info, queue=labels.get(info.id)) for info in infos]
        copied, problems = thread_snapshots(
            named, copies.copies, self._process, activity, are_new=are_new
        )
        if copies.problem is not None:
            problems.append(Problem(thread=None, error=copies.problem))
        return copied, problems

    def _labels(self, queues: dict[int, int]) -> dict[int, str]:
        """By thread, the label of the queue that it serves."""
        mask = self._process.pointer_mask
        at = {thread: mask.strip(queue) for thread, queue in queues.items()}
        labels = queue_labels(self._memory, at.values(), self._extension.label_offset())
        return {thread: labels[queue] for thread, queue in at.items() if queue in labels}

    # --- images ---

    def _images(self) -> TaskImages:
        infos = self._image_infos()
        return TaskImages() if infos is None else self._finder.find(infos)

    def _image_infos(self) -> Avma | None:
        """Return the address of dyld's ``dyld_all_image_infos``; None if unknown."""
        result, address, _, is_wide = self._extension.dyld_info(self._port)
        return None if result or not address or not is_wide else Avma(address)

    def _image_memory(self, images: TaskImages, copied: Sequence[ThreadSnapshot]) -> MemoryReader:
        """Copy what unwinding and symbolication need of images without a file here."""
        values = (v for one in copied for v in (one.registers.pc, *one.registers.values) if v)
        stacks = [one.stack for one in copied]
        return RegionMemory(self._image_bytes.copy_used(images.images, {}, stacks, values))

    def _named(self, images: TaskImages) -> ProcessInfo:
        """Return the process, with dyld's path of its program if the system has none."""
        if images.program and "/" not in self._process.path:
            return replace(self._process, path=images.program)
        return self._process
