"""The memory in a Mach-O core, from its segment commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from machtrace.errors import FormatError
from machtrace.formats.macho.load_commands import LoadCommand
from machtrace.formats.macho.segments import parse_segment
from machtrace.model.core_memory import CoreMemory, CoreSegment, map_memory


def read_memory(
    commands: Sequence[LoadCommand], data: memoryview, source: str, problems: list[FormatError]
) -> CoreMemory:
    """Map the segments that ``commands`` state; see :func:`map_memory`."""

    def segments() -> Iterator[CoreSegment]:
        for command in commands:
            try:
                segment = parse_segment(command, source)
            except FormatError as error:
                problems.append(error)
                continue
            yield CoreSegment(
                segment.vmaddr,
                min(segment.filesize, segment.vmsize),
                segment.fileoff,
                segment.is_executable,
                command.offset,
            )

    return map_memory(segments(), data, source, problems)
