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
    """Answers about the images of one process, at their load addresses."""

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
            # The images come with a snapshot; one thread is enough for it.
            snapshot = target.snapshot([threads[0].id] if threads else None, stack_limit=1 << 12)
        self._images = snapshot.images
        self._request = request
        self._files = ImageResolver()
        self._known: dict[int, tuple[ImageNames, AnswerWriter]] = {}
        if request.print_header:
            name = snapshot.process.name
            write(f"Looking up symbols in process {pid} named:  {name}\n")

    def answer(self, addresses: Sequence[int | None]) -> list[str | None]:
        """Return an answer for each address; None for addresses outside all images."""
        answers: list[str | None] = [None] * len(addresses)
        by_image: dict[int, tuple[BinaryImage, list[int]]] = {}
        for index, address in enumerate(addresses):
            image = None if address is None else self._images.find(Avma(address))
            if image is not None:
                by_image.setdefault(image.load_address, (image, []))[1].append(index)
        for image, indices in by_image.values():
            inside = [addresses[index] or 0 for index in indices]
            names, writer = self._of(image)
            offsets = [address - image.load_address for address in inside]
            for index, text in zip(indices, writer.answers(names, offsets, inside), strict=True):
                answers[index] = text
        return answers

    def _of(self, image: BinaryImage) -> tuple[ImageNames, AnswerWriter]:
        known = self._known.get(image.load_address)
        if known is None:
            known = ImageNames(image, search=self._files), AnswerWriter(image.name, self._request)
            self._known[image.load_address] = known
        return known


def _process_id(spec: str) -> int:
    """Return the id of the process with the id ``spec``, or ``spec`` in its executable's name."""
    if spec.isascii() and spec.isdigit():
        return int(spec)
    matches: dict[int, str] = {}
    for entry in sorted(Path("/proc").iterdir()):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                name = (entry / "exe").readlink().name
                if spec in name:
                    matches[int(entry.name)] = name
    exact = [pid for pid, name in matches.items() if name == spec]
    chosen = exact or list(matches)
    if len(chosen) != 1:
        names = ": " + ", ".join(f"{pid} ({matches[pid]})" for pid in chosen[:8]) if chosen else ""
        raise TargetSpecError(
            f"{len(chosen)} processes run an executable called {spec!r}{names}",
            remedy="give -p the id of one",
        )
    return chosen[0]
