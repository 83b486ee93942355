"""XML documents that stubs serve by ``qXfer``: threads, libraries, the auxiliary words of each.

Sources: *Debugging with GDB*, sections "Thread List Format", "Library List Format for SVR4
Targets" and "Target Description Format". Documents use ``xi:include`` without declaring its
prefix, as gdb's own reader lets them; so the parser must ignore namespaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from xml.parsers.expat import ExpatError, ParserCreate

from machtrace.errors import RemoteProtocolError
from machtrace.formats.elf.core.loader_memory import LoadedObject
from machtrace.model.address import Avma
from machtrace.targets.gdbremote.replies import ThreadName, parse_thread, shortened

_NUMBER = re.compile(r"(?:0x([0-9a-fA-F]{1,16})|([0-9]{1,20}))")
_ADDRESSES = (1 << 64) - 1
_MAX_ELEMENTS = 1 << 17


class Element(NamedTuple):
    """A start tag, and the text up to the next tag."""

    name: str
    attributes: Mapping[str, str]
    text: str
    depth: int


def elements(document: bytes, asked: str) -> list[Element]:
    """Return the elements of ``document`` in its order.

    Raises:
        RemoteProtocolError: it is no XML, declares entities, or has too many elements.
    """
    open_elements: list[tuple[str, dict[str, str], list[str], int]] = []
    depth = 0

    def fail(reason: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"an invalid document ({reason})", request=asked, reply=shortened(document)
        )

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        if len(open_elements) >= _MAX_ELEMENTS:
            raise fail(f"more than {_MAX_ELEMENTS} elements")
        open_elements.append((name, attributes, [], depth))
        depth += 1

    def end(_: str) -> None:
        nonlocal depth
        depth -= 1

    def text(data: str) -> None:
        if open_elements:
            open_elements[-1][2].append(data)

    def declare(*_: object) -> None:
        raise fail("it declares entities")  # which can unfold without end

    parser = ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.EntityDeclHandler = declare
    try:
        parser.Parse(document, True)  # noqa: FBT003 - expat takes no keywords
    except (ExpatError, ValueError) as error:
        raise fail(str(error)) from None
    return [
        Element(name, attributes, "".join(parts), at)
        for name, attributes, parts, at in open_elements
    ]


def number_of(text: str) -> int | None:
    """Parse a number, ``0x1f`` or ``31``; None for anything else."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    value = int(found[2]) if found[1] is None else int(found[1], 16)
    return value if value <= _ADDRESSES else None


def parse_threads_document(document: bytes) -> dict[ThreadName, str]:
    """Parse the threads of ``qXfer:threads:read`` and their names, empty if absent.

    Raises:
        RemoteProtocolError: it is no such document.
    """
    asked = "qXfer:threads:read"
    threads: dict[ThreadName, str] = {}
    for element in elements(document, asked):
        if element.name == "thread":
            thread = parse_thread(element.attributes.get("id", ""))
            if thread is None:
                raise RemoteProtocolError(
                    "a thread without an id", request=asked, reply=shortened(document)
                )
            threads[thread] = element.attributes.get("name", "")
    return threads


def parse_libraries_document(document: bytes) -> tuple[LoadedObject, ...]:
    """Parse the libraries of ``qXfer:libraries-svr4:read``; entries without addresses are left out.

    Raises:
        RemoteProtocolError: it is no such document.
    """
    libraries: list[LoadedObject] = []
    for element in elements(document, "qXfer:libraries-svr4:read"):
        if element.name == "library":
            bias = number_of(element.attributes.get("l_addr", ""))
            dynamic = number_of(element.attributes.get("l_ld", ""))
            if bias is not None:
                name = element.attributes.get("name", "")
                libraries.append(LoadedObject(bias=bias, dynamic=Avma(dynamic or 0), name=name))
    return tuple(libraries)
