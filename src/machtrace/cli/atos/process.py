"""``atos -p``: addresses in a running process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from machtrace.cli.atos.arguments import AtosRequest
from machtrace.cli.atos.output import AnswerWriter
from machtrace.errors import TargetSpecError
from machtrace.images.resolver import ImageResolver
from machtrace.model.address import Avma
from machtrace.model.image import BinaryImage
from machtrace.symbolizer.image_names import ImageNames


class ProcessAnswers:
    """Answers about the images of one process, at the addresses where it has them."""

    def __init__(self, spec: str, request: AtosRequest, write: Callable[[str], object]) -> None:
        """Open the process that ``spec`` names.

        Raises:
            MachtraceError: no process matches, or several, or it cannot be read.
        """
        if sys.platform != "linux":
            raise TargetSpecError(
                "atos -p reads the processes of Linux only",
                remedy="give -o with the file, and -l with its load address",
            )
        from machtrace.targets.open import open_target

        pid = _process_id(spec)
        with open_target(pid) as target:
            threads = target.threads()
            # Images come with a snapshot; of its threads the first is enough.
            snapshot = target.snapshot([threads[0].id] if threads else None, stack_limit=1 << 12)
        self._images = snapshot.images
        self._request = request
        self._files = ImageResolver()
        self._known: dict[int, tuple[ImageNames, AnswerWriter]] = {}
        if request.print_header:
            name = snapshot.process.name
            write(f"Looking up symbols in process {pid} named:  {name}\n")

    def answer(self, addresses: Sequence[int | None]) -> list[str | None]:
        """An answer for each address; None for what is in no image."""
        answers: list[str | None] = [None] * len(addresses)
        places: dict[int, tuple[BinaryImage, list[int]]] = {}
        for place, address in enumerate(addresses):
            image = None if address is None else self._images.find(Avma(address))
            if image is not None:
                places.setdefault(image.load_address, (image, []))[1].append(place)
        for image, inside in places.values():
            asked = [addresses[place] or 0 for place in inside]
            names, writer = self._of(image)
            offsets = [address - image.load_address for address in asked]
            for place, text in zip(inside, writer.answers(names, offsets, asked), strict=True):
                answers[place] = text
        return answers

    def _of(self, image: BinaryImage) -> tuple[ImageNames, AnswerWriter]:
        known = self._known.get(image.load_address)
        if known is None:
            known = ImageNames(image, search=self._files), AnswerWriter(image.name, self._request)
            self._known[image.load_address] = known
        return known


def _process_id(spec: str) -> int:
    """The process whose id ``spec`` is, or a part of whose executable's name."""
    if spec.isascii() and spec.isdigit():
        return int(spec)
    found: dict[int, str] = {}
    for entry in sorted(Path("/proc").iterdir()):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                name = (entry / "exe").readlink().name
                if spec in name:
                    found[int(entry.name)] = name
    exact = [pid for pid, name in found.items() if name == spec]
    chosen = exact or list(found)
    if len(chosen) != 1:
        told = ": " + ", ".join(f"{pid} ({found[pid]})" for pid in chosen[:8]) if chosen else ""
        raise TargetSpecError(
            f"{len(chosen)} processes run an executable called {spec!r}{told}",
            remedy="give -p the id of one",
        )
    return chosen[0]
