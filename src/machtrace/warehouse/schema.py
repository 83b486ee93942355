"""The tables of a segment, as Arrow schemas.

Numbers of rows are local to a segment; keys are the same in every warehouse. Times are in ns since
1970. A segment's files carry :data:`VERSION`; readers refuse later ones.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from machtrace.model.image import BuildId
from machtrace.model.report import ReportedImage

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
IDENTITY_SIZE = 20
_KEY = pa.binary(16)
_TEXT = pa.dictionary(pa.int32(), pa.string())


class FrameKind(IntEnum):
    """The meaning of a frame's address."""

    IMAGE = 0
    """An offset in an image."""
    ADDRESS = 1
    """An address outside of the listed images."""
    TEXT = 2
    """A name alone, from a source without addresses."""


class FrameAdjustment(IntEnum):
    """How a frame's offset relates to the instruction that ran; see ``model.report.Adjustment``."""

    UNKNOWN = 0
    EXACT = 1
    RETURN = 2
    ALREADY_ADJUSTED = 3


REPORTS = pa.schema(
    [
        ("key", _KEY),  # of the incident, or of the report's bytes
        ("received", pa.int64()),
        ("time", pa.int64()),  # of the incident, as the report states it; null if it does not
        ("kind", _TEXT),  # crash, hang, processor, memory, profile, audit, stacks
        ("format", _TEXT),
        ("app", _TEXT),
        ("version", _TEXT),
        ("build", _TEXT),
        ("os", _TEXT),
        ("model", _TEXT),
        ("device", _TEXT),  # an anonymous identifier
        ("exception", _TEXT),
        ("incident", pa.string()),
        ("subject", pa.int32()),  # the occurrence that the report is about, counted in it; null
        ("raw", pa.string()),  # the log with the report's bytes
        ("raw_offset", pa.int64()),
        ("duration", pa.int64()),  # of a hang, in ns; null if it is unknown
        ("waits_for", pa.string()),  # what a hang waited for, and its owner; may be empty
    ]
)
IMAGES = pa.schema(
    [
        ("identity", pa.binary(IDENTITY_SIZE)),
        ("uuid", pa.string()),  # UUID or GNU build id, in hexadecimal; empty if it is unknown
        ("name", pa.string()),
        ("path", pa.string()),
        ("arch", pa.string()),
        ("owner", pa.string()),  # app, system, unknown
    ]
)
FRAMES = pa.schema(
    [
        ("image", pa.int32()),  # -1: none
        ("offset", pa.uint64()),  # in the image; an address without one
        ("adjustment", pa.uint8()),
        ("kind", pa.uint8()),
        ("text", pa.string()),  # of FrameKind.TEXT; else empty
    ]
)
NODES = pa.schema([("depth", pa.uint32()), ("frame", pa.uint32())])
STACKS = pa.schema([("node", pa.int32()), ("key", _KEY)])
OCCURRENCES = pa.schema(
    [
        ("report", pa.uint32()),
        ("node", pa.int32()),
        ("weight", pa.int64()),
        ("time", pa.int64()),  # null: the report's
        ("thread", pa.int32()),  # its number in the report; -1: unknown
        ("role", _TEXT),  # crashed, exception, main, sample, thread
        ("unit", _TEXT),  # what the weight counts: threads, samples, calls, ns, bytes
        ("name", _TEXT),  # the thread's
    ]
)
NAMES = pa.schema(
    [
        ("frame", pa.uint32()),
        ("place", pa.uint16()),  # 0: the innermost inlined call
        ("function", _TEXT),
        ("file", _TEXT),
        ("line", pa.int32()),  # 0: unknown
        ("source", _TEXT),  # see ``model.report.NameSource``
    ]
)
TABLES: Mapping[str, pa.Schema] = {
    "reports": REPORTS,
    "images": IMAGES,
    "frames": FRAMES,
    "nodes": NODES,
    "stacks": STACKS,
    "occurrences": OCCURRENCES,
    "names": NAMES,
}


def image_identity(image: ReportedImage) -> bytes:
    """Return the identity of an image's code: its UUID or build id; else of its path or name."""
    match image.uuid:
        case UUID() as uuid:
            return uuid.bytes.ljust(IDENTITY_SIZE, b"\0")
        case BuildId(value) if len(value) <= IDENTITY_SIZE:
            return value.ljust(IDENTITY_SIZE, b"\0")
        case BuildId(value):
            return blake2b(value, digest_size=IDENTITY_SIZE).digest()
        case _:
            text = f"{image.arch or ''}\0{image.path or image.name}"
            return text_identity(text)


def text_identity(text: str) -> bytes:
    """Return the identity of what has only a name."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=IDENTITY_SIZE).digest()
