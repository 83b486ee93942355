"""The images of a stub's process, and of those that no file here is of, the bytes in use.

Files of the stub's machine are read by ``vFile`` if no other request has the facts.

Source: *Debugging with GDB*, "Host I/O Packets". Nothing is ever written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from machtrace.errors import FormatError, MachtraceError, RemoteProtocolError
from machtrace.formats.elf.core.loader_memory import LoadedObject
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import MemoryRegion
from machtrace.model.snapshot import SharedCache, ThreadSnapshot
from machtrace.targets.gdbremote.features import StubFeatures, read_documents
from machtrace.targets.gdbremote.host import RemoteHost, RemoteSystem
from machtrace.targets.gdbremote.json_documents import (
    StubImage,
    parse_images_info,
    parse_shared_cache,
)
from machtrace.targets.gdbremote.memory import RemoteMemory
from machtrace.targets.gdbremote.replies import is_error, parse_file_result, parse_region
from machtrace.targets.gdbremote.session import GdbSession
from machtrace.targets.gdbremote.xml_documents import parse_libraries_document
from machtrace.targets.shared.elf_images import (
    FoundElf,
    LoaderFacts,
    find_elf_images,
    program_headers,
    program_name,
    with_local_file,
)
from machtrace.targets.shared.image_copier import ImageCopier
from machtrace.targets.shared.paged_memory import PagedMemory
from machtrace.targets.shared.proc_maps import Mapping, parse_maps

_PIECE = 1 << 12
_MAX_LENGTH = 1 << 24
_READ_ONLY = b",0,0"


def read_maps(session: GdbSession, pid: int) -> tuple[Mapping, ...]:
    """Read a Linux process's mappings; none if the stub has no files or the system no ``/proc``.

    Raises:
        ConnectionLostError, RemoteProtocolError: the stub answers nothing.
    """
    text = _read_file(session, f"/proc/{pid}/maps")
    try:
        return parse_maps(text.decode("utf-8", "surrogateescape"), f"/proc/{pid}/maps")
    except FormatError:
        return ()


def program_path(session: GdbSession, pid: int) -> str:
    """Return the path of a Linux process's program; empty if unknown."""
    name = f"/proc/{pid}/exe".encode().hex().encode()
    found = parse_file_result(session.ask(b"vFile:readlink:" + name))
    if found is None or found[0] <= 0:
        return ""
    return found[1].decode("utf-8", "surrogateescape").removesuffix(" (deleted)")


def _read_file(session: GdbSession, path: str) -> bytes:
    opened = parse_file_result(
        session.ask(b"vFile:open:" + path.encode().hex().encode() + _READ_ONLY)
    )
    if opened is None or opened[0] < 0:
        return b""
    data = bytearray()
    try:
        while len(data) < _MAX_LENGTH:
            asked = b"vFile:pread:%x,%x,%x" % (opened[0], _PIECE, len(data))
            part = parse_file_result(session.ask(asked))
            if part is None or part[0] <= 0 or not part[1]:
                break
            data += part[1]
    finally:
        if not session.is_lost:
            session.ask(b"vFile:close:%x" % opened[0])
    return bytes(data[: data.rfind(b"\n") + 1])


_IMAGES = b'jGetLoadedDynamicLibrariesInfos:{"fetch_all_solibs":true}'
_SHARED_CACHE = b"jGetSharedCacheInfo:{}"
_MAX_CODE = 1 << 30
"""Maximum bytes of ``__TEXT`` for an image of unknown size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteImages:
    """The images of a process."""

    images: ImageList = field(default_factory=ImageList)
    program: str = ""
    """The program's path; empty if unknown."""
    mappings: tuple[Mapping, ...] = ()
    """A Linux process's mappings, if the stub has files."""
    auxiliary_vector: bytes = b""
    shared_cache: SharedCache | None = None
    problems: tuple[MachtraceError, ...] = ()


class RemoteImageFinder:
    """Finds the images of one process and caches them."""

    def __init__(
        self,
        session: GdbSession,
        features: StubFeatures,
        host: RemoteHost,
        memory: RemoteMemory,
        pid: int | None,
    ) -> None:
        self._session = session
        self._features = features
        self._host = host
        self._memory = memory
        self._pages = PagedMemory(memory)
        self._pid = pid
        self._elves: dict[Avma, FoundElf] = {}
        self._found: RemoteImages | None = None
        self._answer: object = None
        self._found_after: int | None = None
        mask = host.pointer_mask or host.usual_mask
        self._copier = ImageCopier(memory, self._pages, host.arch, mask)

    def find(self, resumed_at_ns: int | None) -> RemoteImages:
        """Find the current images of the process.

        Args:
            resumed_at_ns: when it was last let run; since then what was found holds.

        Raises:
            ConnectionLostError: the stub does not answer.
        """
        if self._found is not None and self._found_after == resumed_at_ns:
            return self._found
        self._found_after = resumed_at_ns
        self._pages.forget()
        try:
            if self._host.system is RemoteSystem.DARWIN:
                return self._find_machos()
            return self._find_elves()
        except RemoteProtocolError as error:
            return RemoteImages(problems=(error,))

    def copy_used(
        self, images: ImageList, threads: Sequence[ThreadSnapshot], more: Iterable[MemoryRegion]
    ) -> list[MemoryRegion]:
        """Copy the bytes that unwinding ``threads`` needs of images without a file here.

        Raises:
            ConnectionLostError: the stub does not answer.
        """
        values = (
            v for thread in threads for v in (thread.registers.pc, *thread.registers.values) if v
        )
        elves = {address: one.elf for address, one in self._elves.items()}
        stacks = [*(thread.stack for thread in threads), *more]
        return self._copier.copy_used(images, elves, stacks, values)

    def copy_contexts(self, threads: Sequence[ThreadSnapshot]) -> list[MemoryRegion]:
        """Copy the contexts of suspended Swift functions that ``threads`` lead to.

        Raises:
            ConnectionLostError, RemoteProtocolError: the stub does not answer.
        """
        if self._host.system is not RemoteSystem.DARWIN:
            return []
        from machtrace.targets.shared.async_contexts import context_pointers, read_contexts

        pages = PagedMemory(self._memory)  # what is there changes whenever the process runs
        mask = self._host.pointer_mask or self._host.usual_mask
        values = [thread.registers.values for thread in threads]
        pointers = context_pointers([thread.stack for thread in threads], values, self._host.arch)
        return pages.gather(lambda: read_contexts(pages, pointers, mask))

    # --- Mach-O ---

    def _find_machos(self) -> RemoteImages:
        replies = self._session.ask_all((_IMAGES, _SHARED_CACHE))
        if replies == self._answer and self._found is not None:
            return self._found
        reply, cache = replies
        if not reply or is_error(reply):
            return RemoteImages()
        reported = parse_images_info(reply)
        images = [
            _darwin_image(image, self._host)
            for image in _by_address(reported)
            if image.text is not None
        ]
        bare = [image for image in _by_address(reported) if image.text is None]
        images += self._pages.gather(lambda: [self._headed(image) for image in bare])
        program = next((image for image in reported if image.is_program), None)
        self._answer = replies
        shared, problems = _shared_cache(cache)
        self._found = RemoteImages(
            images=ImageList(images),
            program="" if program is None else program.path,
            shared_cache=shared,
            problems=problems,
        )
        return self._found

    def _headed(self, reported: StubImage) -> BinaryImage:
        """Build an image whose segments the stub does not report."""
        image = _darwin_image(reported, self._host)
        contents = self._copier.macho(image)
        text = None if contents is None else contents.image.text_segment
        if contents is None or text is None:
            return image
        return BinaryImage(
            path=image.path,
            uuid=contents.image.uuid or image.uuid,
            arch=contents.image.header.arch or image.arch,
            format=ImageFormat.MACHO,
            load_address=image.load_address,
            header_svma=text.vmaddr,
            size=text.vmsize,
        )

    # --- ELF ---

    def _find_elves(self) -> RemoteImages:
        names = [
            name
            for name in ("auxv:", "libraries-svr4:", "exec-file:")
            if name[:-1] in self._features.documents
        ]
        documents = dict(
            zip(names, read_documents(self._session, names, self._features), strict=True)
        )
        vector = documents.get("auxv:") or b""
        listed = documents.get("libraries-svr4:")
        problems: list[MachtraceError] = []
        libraries: tuple[LoadedObject, ...] | None = None
        try:
            libraries = None if listed is None else parse_libraries_document(listed)
        except RemoteProtocolError as error:
            problems.append(error)
        known = self._found
        mappings: tuple[Mapping, ...] = ()
        program = (documents.get("exec-file:") or b"").decode("utf-8", "surrogateescape")
        if self._pid is not None and not self._features.has_thread_suffix:
            mappings = read_maps(self._session, self._pid)
        if known is not None and (documents, mappings) == self._answer:
            return known
        if self._pid is not None and not program:
            program = program_path(self._session, self._pid) or self._mapped_program(vector)
        facts = LoaderFacts(
            arch=self._host.arch,
            auxiliary_vector=vector,
            libraries=libraries,
            mappings=mappings,
            program=program,
        )
        elves = self._pages.gather(lambda: find_elf_images(facts, self._pages))
        elves = self._pages.gather(
            lambda: tuple(with_local_file(elf, self._pages) for elf in elves)
        )
        self._elves = {elf.image.load_address: elf for elf in elves}
        self._answer = documents, mappings
        self._found = RemoteImages(
            images=ImageList(elf.image for elf in elves),
            program=self._pages.gather(lambda: program_name(facts, self._pages)),
            mappings=mappings,
            auxiliary_vector=vector,
            problems=tuple(problems),
        )
        return self._found

    def _mapped_program(self, vector: bytes) -> str:
        """Return the path mapped at the program's headers; empty if unknown."""
        headers = program_headers(vector, self._host.arch)
        reply = self._session.ask(b"qMemoryRegionInfo:%x" % headers)
        region = parse_region(reply) if headers else None
        return region.name if region is not None and region.name.startswith("/") else ""


def _shared_cache(reply: bytes) -> tuple[SharedCache | None, tuple[MachtraceError, ...]]:
    """Build an image from the stub's description; None if that is invalid."""
    if not reply or is_error(reply):
        return None, ()
    try:
        return parse_shared_cache(reply), ()
    except RemoteProtocolError as error:
        return None, (error,)


def _by_address(reported: Sequence[StubImage]) -> list[StubImage]:
    return list({one.load_address: one for one in reported}.values())


def _darwin_image(reported: StubImage, host: RemoteHost) -> BinaryImage:
    text = reported.text
    size = _MAX_CODE if text is None else text.size
    return BinaryImage(
        path=reported.path,
        uuid=reported.uuid,
        arch=reported.arch or host.arch,
        format=ImageFormat.MACHO,
        load_address=reported.load_address,
        header_svma=Avma(reported.load_address) if text is None else text.address,  # type: ignore[arg-type]
        size=min(size, (1 << 64) - reported.load_address),
    )
