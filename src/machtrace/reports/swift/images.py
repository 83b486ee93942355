"""The images of a backtrace: ``0x1000–0x5000 0123abcd name /path/name``."""

from __future__ import annotations

import re

from machtrace.model.address import Avma
from machtrace.model.reported_image import ReportedImage
from machtrace.reports.identifiers import identifier

_IMAGE = re.compile(
    r"[ \t]*+(?P<start>0x[0-9a-fA-F]{1,16})(?:\u2013|-)(?P<end>0x[0-9a-fA-F]{1,16})[ \t]++"
    r"(?P<identifier>(?:[0-9a-fA-F]{2}){1,64}+|<no build ID>)[ \t]++(?P<rest>\S.*)"
)
_PATH = re.compile(r"(?<![ \t])[ \t]++(?=/)")


def parse_image_line(line: str, *, is_macho: bool) -> ReportedImage | None:
    """What a line says; None where it is no image's.

    Args:
        line: without its end, of no more than some thousand characters.
        is_macho: see :func:`~machtrace.reports.identifiers.identifier`.
    """
    match = _IMAGE.fullmatch(line)
    if match is None:
        return None
    start, end = int(match["start"], 16), int(match["end"], 16)
    name, *paths = _PATH.split(match["rest"].rstrip(), maxsplit=1)
    return ReportedImage(
        uuid=identifier(match["identifier"], is_macho=is_macho),
        name=name,
        path=paths[0] if paths else "",
        load_address=Avma(start),
        size=end - start if end >= start else None,
    )
