"""Snapshot, then walk, then name: the line that all data takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import LayeredMemory
from machtrace.model.report import Report
from machtrace.model.snapshot import Snapshot
from machtrace.model.stack import Backtrace
from machtrace.model.symbol import FrameStatus
from machtrace.symbolicate.image_source import ImageSource, in_memory
from machtrace.symbolicate.symbolicator import Symbolicator
from machtrace.unwinder.image_rules import image_rules
from machtrace.unwinder.process_rules import ImageRules, ProcessRules
from machtrace.unwinder.walker import DEFAULT_DEPTH, walk


def unwind(
    snapshot: Snapshot, *, limit: int = DEFAULT_DEPTH, search: Sequence[str | Path] = ()
) -> tuple[Backtrace, ...]:
    """Walk every thread of a snapshot.

    Args:
        snapshot: what was copied; nothing else of the target is read.
        limit: how many addresses of a stack are kept at most: of a deeper one those at both ends,
            and the number of the others.
        search: files and folders with the images whose bytes the snapshot does not hold.
    """
    process = snapshot.process
    rules = ProcessRules(snapshot.images, process.arch, _rules_of(snapshot, ImageSource.of(search)))
    found: list[Backtrace] = []
    for thread in snapshot.threads:
        memory = LayeredMemory((thread.stack, snapshot.memory))
        walked = walk(thread.registers, memory, rules, process.pointer_mask, limit)
        found.append(
            Backtrace(
                addresses=walked.addresses,
                stop=walked.stop,
                gap=walked.gap,
                physical_remainder=walked.physical_remainder,
                thread=thread,
                snapshot=snapshot,
            )
        )
    return tuple(found)


def _rules_of(snapshot: Snapshot, files: ImageSource) -> Callable[[BinaryImage], ImageRules]:
    def rules_of(image: BinaryImage) -> ImageRules:
        memory, file = in_memory(image, snapshot.memory), files.file(image)
        # A Mach-O's tables are in memory, if they were captured. An ELF file has more than its
        # memory: the section headers that lead to .debug_frame, and in static programs to
        # .eh_frame.
        places = (file, memory) if image.format is ImageFormat.ELF else (memory, file)
        found = [place for place in places if not isinstance(place, FrameStatus)]
        rules = [image_rules(contents, image.arch) for contents in found]
        if not rules:
            return ImageRules()
        header = rules[0].header_svma
        # What one place does not have, the next is asked for.
        alike = [one for one in rules if one.header_svma == header]
        sources = tuple(source for one in alike for source in one.sources)
        return ImageRules(sources, header, next(filter(None, (one.witness for one in alike)), None))

    return rules_of


def report(
    snapshot: Snapshot,
    *,
    limit: int = DEFAULT_DEPTH,
    symbolicate: bool = True,
    search: Sequence[str | Path] = (),
) -> Report:
    """Walk every thread of a snapshot and name its frames; see :func:`unwind`."""
    symbolicator = Symbolicator(search=search)
    name = symbolicator.symbolicate if symbolicate else symbolicator.locate
    return Report(
        process=snapshot.process,
        images=snapshot.images,
        stacks=tuple(name(walked) for walked in unwind(snapshot, limit=limit, search=search)),
        problems=snapshot.problems,
    )
