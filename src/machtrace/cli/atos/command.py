"""``machtrace atos``: names for addresses, with the arguments and the output of Apple's command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

from machtrace.cli.atos.arguments import (
    USAGE,
    AtosRequest,
    AtosUsageError,
    LoadError,
    parse_address,
    parse_arguments,
)
from machtrace.errors import FileAccessError

_READ = 1 << 20
"""Bytes of standard input per read; a pipe returns what it holds at once."""
_BATCH = 1 << 16
"""Words of a file that are answered in one call."""
_MAX_WORD_LENGTH = 1 << 16
"""Bytes of the longest word; longer ones are not addresses."""


class Answers(Protocol):
    """A file or process whose addresses can be named."""

    def answer(self, addresses: Sequence[int | None], /) -> list[str | None]:
        """Return an answer for each address, as it is printed; None if it is not in this source."""
        ...


def run(arguments: Sequence[str]) -> int:
    """Run the command, and return the exit status.

    Raises:
        MachtraceError: a file or process cannot be read.
    """
    try:
        request = parse_arguments(arguments)
    except AtosUsageError as error:
        sys.stderr.write(f"[invalid usage]: {error}\n\n{USAGE}")
        return 1
    if request.help:
        _write(USAGE)
        return 0
    try:
        sources = _open(request)
    except LoadError as error:
        # Without a prefix: scripts match the start of the line.
        sys.stderr.write(f"{' '.join(str(error).split())}\nhint: {error.remedy}\n")
        return 1
    for words in _batches(request):
        _write(_answered(words, sources, request))
    return 0


def _open(request: AtosRequest) -> list[Answers]:
    sources: list[Answers] = []
    for spec in request.processes:
        from machtrace.cli.atos.process import ProcessAnswers

        sources.append(ProcessAnswers(spec, request, _write))
    for path in request.files:
        from machtrace.cli.atos.file import FileAnswers

        sources.append(FileAnswers(path, request, _warn))
    return sources


def _answered(words: Sequence[str], sources: Sequence[Answers], request: AtosRequest) -> str:
    """Return each word's answer from the first source that has one, or the word itself."""
    addresses = [parse_address(word) for word in words]
    answers: list[str | None] = [None] * len(words)
    for source in sources:
        unanswered = [index for index, answer in enumerate(answers) if answer is None]
        if not unanswered:
            break
        texts = source.answer([addresses[index] for index in unanswered])
        for index, text in zip(unanswered, texts, strict=True):
            answers[index] = text
    end = f"{request.delimiter}\n" if request.inline else "\n"
    return "".join(
        f"{word}{end}" if answer is None else answer
        for word, answer in zip(words, answers, strict=True)
    )


def _batches(request: AtosRequest) -> Iterator[list[str]]:
    """Yield the words to answer, in batches as they arrive."""
    if request.addresses:
        yield list(request.addresses)
    if request.input_file is not None:
        words = _file_words(request.input_file)
        for at in range(0, len(words), _BATCH):
            yield words[at : at + _BATCH]
    elif not request.addresses:
        yield from _input_words()


def _file_words(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib would be one more import
            return file.read().decode("utf-8", "backslashreplace").split()
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "cannot be read"
        raise FileAccessError(path, reason.lower()) from error


def _input_words() -> Iterator[list[str]]:
    """Yield the words of standard input, as soon as they arrive."""
    rest = b""
    while True:
        try:
            data = os.read(0, _READ)
        except OSError as error:
            reason = error.strerror or "cannot be read"
            raise FileAccessError("standard input", reason) from error
        if not data:
            break
        # A word ends with whitespace; the next read may continue the last one.
        whole = max(data.rfind(b"\n"), data.rfind(b" "), data.rfind(b"\t")) + 1
        words = (rest + data[:whole]).split() if whole else []
        rest = data[whole:] if whole else rest + data
        if len(rest) > _MAX_WORD_LENGTH:
            words, rest = [*words, rest], b""
        if words:
            yield [word.decode("utf-8", "backslashreplace") for word in words]
    if rest.strip():
        yield [word.decode("utf-8", "backslashreplace") for word in rest.split()]


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _warn(line: str) -> None:
    sys.stderr.write(f"machtrace: {' '.join(line.split())}\n")
