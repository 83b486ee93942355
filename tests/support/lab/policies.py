"""The ways of walking that the lab compares."""

from __future__ import annotations

from collections.abc import Callable

from machtrace.errors import MemoryReadError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.address import Avma, PacMask
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.unwinder.frame_limit import FrameLimit
from machtrace.unwinder.rule_cache import ImageRules, RuleCache
from machtrace.unwinder.rules import RuleSource
from machtrace.unwinder.sources.compact import CompactRules
from machtrace.unwinder.sources.of_image import image_rules
from machtrace.unwinder.sources.of_macho import call_frame_rules
from machtrace.unwinder.step import THUMB_BIT
from machtrace.unwinder.walker import walk
from tests.support.emulated.run import Moment

MASK = PacMask.of_width(47)
_MAX_STACK_LENGTH = 512

Policy = Callable[[Moment], tuple[Avma, ...]]
"""A way of walking: the addresses that it finds, innermost first."""


def documents_policy(moment: Moment) -> tuple[Avma, ...]:
    """Pc, link register, then the chain of frame pointers: what BSBacktraceLogger does.

    Where there is no link register, pc and the chain; on 32-bit arm, without the Thumb bit.
    """
    registers, memory = moment.registers, moment.memory
    size = registers.arch.pointer_size
    bits = MASK.bits & ~THUMB_BIT if registers.arch.is_arm else MASK.bits
    addresses = [registers.pc]
    if registers.lr:
        addresses.append(Avma(registers.lr & bits))
    fp = MASK.strip(registers.fp or 0)
    while fp and len(addresses) < _MAX_STACK_LENGTH:
        try:
            previous = int.from_bytes(memory.read(fp, size), "little")
            address = int.from_bytes(memory.read(Avma(fp + size), size), "little")
        except MemoryReadError:
            break
        if not address:
            break
        addresses.append(Avma(address & bits))
        fp = MASK.strip(previous)
    return tuple(addresses)


def rules_policy(rules: RuleCache) -> Policy:
    """The walk by ``rules``; of Swift's async functions the machine's frames, all of them."""

    def policy(moment: Moment) -> tuple[Avma, ...]:
        walked = walk(moment.registers, moment.memory, rules, MASK, FrameLimit(_MAX_STACK_LENGTH))
        rest = walked.physical_remainder
        frames = walked.addresses + (() if rest is None else rest.addresses)
        return tuple(frame.address for frame in frames)

    return policy


def process_rules(contents: MachOFileContents, rules: ImageRules) -> RuleCache:
    """Return the rules of a process with this one image, at its stated address."""
    return RuleCache(ImageList([image_of(contents)]), contents.image.arch, lambda _: rules)


def image_of(contents: MachOFileContents, path: str | None = None) -> BinaryImage:
    """Return an executable at its stated address."""
    parsed = contents.image
    text = parsed.text_segment
    assert text is not None
    return BinaryImage(
        path=path or contents.source,
        uuid=parsed.uuid,
        arch=parsed.arch,
        format=ImageFormat.MACHO,
        load_address=Avma(text.vmaddr),
        header_svma=text.vmaddr,
        size=text.vmsize,
    )


def all_rules(contents: MachOFileContents) -> RuleCache:
    """Everything that is known of a program."""
    return process_rules(contents, image_rules(contents, contents.image.arch))


def policies(contents: MachOFileContents) -> dict[str, Policy]:
    """Return policies by column name; each falls back to the frame pointer."""
    arch, header = contents.image.arch, contents.image.header_svma

    def only(source: RuleSource | None) -> Policy:
        found = () if source is None else (source,)
        return rules_policy(process_rules(contents, ImageRules(found, header)))

    return {
        "documents": documents_policy,
        "frame pointer": only(None),
        "compact": only(CompactRules.of_macho(contents, arch)),
        "CFI": only(call_frame_rules(contents)),
        "everything": rules_policy(all_rules(contents)),
    }
