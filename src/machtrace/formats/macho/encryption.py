"""Which of an image's bytes are still encrypted."""

from __future__ import annotations

from machtrace.formats.macho.contents import FileContents, MachOContents
from machtrace.model.address import Svma


def is_encrypted(contents: MachOContents, address: Svma, size: int) -> bool:
    """Whether any of ``size`` bytes at a stated address are only noise here.

    Programs from the App Store have most of ``__TEXT`` encrypted (FairPlay): code, and the unwind
    tables behind it. The kernel decrypts pages as it loads them, so in memory they are plain,
    though the load command still says otherwise (``mach-o/loader.h``,
    ``encryption_info_command``).
    """
    command = contents.image.encryption_info
    if command is None or command.cryptid == 0 or not isinstance(contents, FileContents):
        return False
    segment = contents.image.segment_at(address)
    if segment is None:
        return False
    start = segment.fileoff + (address - segment.vmaddr)
    return start < command.cryptoff + command.cryptsize and command.cryptoff < start + size
