"""Importing what captures of this process use, before the first of them.

A program's threads run on while their stacks are unwound and named. One of them can be in a
callback of ``dl_iterate_phdr``, which has the loader's list of images locked, and wait there for
the interpreter's lock. An import of an extension holds that lock and waits for the list: both wait
for ever. So a capture imports nothing between its first stop and its answer, not even modules that
only some images, or some errors, need.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module

from machtrace.extension_imports import libraries_first
from machtrace.model.image import ImageFormat

MODULES = (
    "concurrent.futures.thread",
    "difflib",
    "encodings.ascii",
    "encodings.latin_1",
    "encodings.punycode",
    "encodings.unicode_escape",
    "lzma",
    "numpy",
    "numpy.ma",  # numpy.unique imports it
    "pwd",
    "shlex",
    "subprocess",
    "machtrace._native._mapping",
    "machtrace._native._names",
    "machtrace._native._ranges",
    "machtrace.demangler.library",
    "machtrace.images.elf_debug",
    "machtrace.images.folder_index",
    "machtrace.images.named_file",
    "machtrace.lines.debug_information",
    "machtrace.lines.index",
    "machtrace.lines.index_cache",
    "machtrace.lines.symcache_columns",
    "machtrace.model.incident.text",
    # Which of them a file needs is known once it is open.
    "machtrace.formats.macho.contents",
    "machtrace.formats.macho.static_archive",
    "machtrace.symbols.go",
    "machtrace.unwinder.arch.arm64.analysis",
    "machtrace.unwinder.arch.x86.analysis",
    "machtrace.unwinder.functions.branch_scan",
    "machtrace.unwinder.functions.starts",
    "machtrace.unwinder.native",
    "machtrace.unwinder.sources.go",
    "machtrace.unwinder.sources.stubs",
    "machtrace.unwinder.stack_columns",
)

MODULES_BY_FORMAT = {
    ImageFormat.ELF: (
        "machtrace.cpython.locks",
        "machtrace.cpython.runtime",
        "machtrace.formats.dwarf.frame_index",
        "machtrace.formats.elf.core.registers",
        "machtrace.lines.split.index",
        "machtrace.symbols.elf",
        "machtrace.symbols.elf_first_symbol",
        "machtrace.targets.inprocess.memory",
        "machtrace.unwinder.arch.own_code",
        "machtrace.unwinder.arch.unnamed_functions",
        "machtrace.unwinder.functions.elf_bounds",
        "machtrace.unwinder.sources.of_elf",
    ),
    ImageFormat.MACHO: (
        "plistlib",
        "xml.parsers.expat",
        "machtrace._native._darwin_task",
        "machtrace.formats.macho.fixups.bind_opcodes",
        "machtrace.formats.macho.fixups.chained",
        "machtrace.formats.macho.fixups.rebase_opcodes",
        "machtrace.formats.macho.metadata.objc_stubs",
        "machtrace.formats.macho.tables.stabs",
        "machtrace.formats.macho.tables.symtab",
        "machtrace.lines.debug_map",
        "machtrace.symbols.macho.first_symbol",
        "machtrace.symbols.macho.table",
        "machtrace.symbols.objc",
        "machtrace.symbols.rtti",
        "machtrace.symbols.swift",
        "machtrace.targets.shared.async_contexts",
        "machtrace.targets.shared.image_copier",
        "machtrace.unwinder.functions.bounds",
        "machtrace.unwinder.sources.of_macho",
    ),
}


@cache
def preload(kind: ImageFormat) -> None:
    """Import what captures of a process with images of this kind use, once.

    What is not installed is left out, as it is where it is used.
    """
    with libraries_first():
        for name in (*MODULES, *MODULES_BY_FORMAT[kind]):
            with suppress(ImportError):
                import_module(name)
