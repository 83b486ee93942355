"""``machtrace demangle``: a filter for mangled names, as c++filt and swift-demangle are."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterator

import click

from machtrace.demangler import demangle as demangled
from machtrace.errors import FileAccessError

_READ = 1 << 20
"""Bytes of standard input per read; a pipe returns what it holds at once."""
_MAX_NAME_LENGTH = 1 << 16
"""Bytes of the longest name; longer runs of a name's characters are copied."""

_NAME = re.compile(
    rb"(?<![A-Za-z0-9_.$])"  # what is inside another word is not a name
    rb"(?:__imp_|___?alloc_token_(?:[0-9]+_)?)?"
    rb"(?:_{1,4}Z|__?[RT]|_?\$[Sse]|_?@__swiftmacro_)[A-Za-z0-9_.$]+"
    rb"(?:@@?[A-Za-z_][A-Za-z0-9_.]*)?"  # a version
)
_NAME_BYTES = (string.ascii_letters + string.digits + "_.$@").encode()


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--simplified",
    is_flag=True,
    help="Omit parameters, return types and hashes; show template arguments as <...>.",
)
def demangle(*, names: tuple[str, ...], simplified: bool) -> None:
    """Demangle C++, Rust and Swift names in text.

    Each NAME is printed on a line of its own. Without one, text is copied from stdin to stdout,
    and the mangled names in it are replaced; every other byte stays as it is.
    """
    from machtrace.cli.console import raw_output

    with raw_output() as sink:
        if names:
            for name in names:
                whole = demangled(name, simplified=simplified)
                text = _bytes(whole) if whole != name else _replaced(os.fsencode(name), simplified)
                sink.write(text + b"\n")
            return
        for text in filtered_input(simplified):
            sink.write(text)
            sink.flush()


def _replaced(text: bytes, simplified: bool) -> bytes:  # noqa: FBT001 - the command's flag
    """Return ``text`` with its mangled names replaced."""

    def replace(match: re.Match[bytes]) -> bytes:
        # A full stop or $ behind a name belongs to the sentence.
        name = match[0].rstrip(b".$")
        return (
            _bytes(demangled(name.decode("ascii"), simplified=simplified)) + match[0][len(name) :]
        )

    return _NAME.sub(replace, text)


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def filtered_input(simplified: bool) -> Iterator[bytes]:  # noqa: FBT001 - the command's flag
    """Yield standard input, with names replaced, as soon as it arrives.

    Raises:
        FileAccessError: standard input cannot be read.
    """
    rest, is_inside = b"", False
    while data := _read():
        if is_inside:  # a run that is too long for a name
            after = data.lstrip(_NAME_BYTES)
            yield data[: len(data) - len(after)]
            is_inside, data = not after, after
        data = rest + data
        cut = len(data.rstrip(_NAME_BYTES))  # the next read may continue a name
        yield _replaced(data[:cut], simplified)
        rest = data[cut:]
        if len(rest) > _MAX_NAME_LENGTH:
            yield rest
            rest, is_inside = b"", True
    yield _replaced(rest, simplified)


def _read() -> bytes:
    try:
        return os.read(0, _READ)
    except OSError as error:
        raise FileAccessError("standard input", error.strerror or "cannot be read") from error
