"""A profile for pprof: the gzipped protocol buffer that ``go tool pprof`` and others read.

Source of the format: ``proto/profile.proto`` of github.com/google/pprof, whose field numbers these
are. A sample has two values, how often the stack was seen and the nanoseconds that this represents,
and a third, the processor time, where that is known; and the labels ``thread``, ``tid`` and
``state``. Source of the encoding: *Encoding* at protobuf.dev: a field
is its number and wire type as a varint, then a varint, or a length and its bytes. A field that is 0
or empty is omitted, as in proto3.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable

from machtrace.model.image import BinaryImage
from machtrace.model.profile import OUTERMOST, STATES, UNKNOWN, Profile, ProfileFrame, SampleTable
from machtrace.model.symbol import Frame
from machtrace.render.call_tree import bounded
from machtrace.render.functions import Function, functions_of

_VARINT = 0
_LENGTH = 2
_MASK = (1 << 64) - 1


class Message:
    """A message that fields are added to, in any order."""

    __slots__ = ("_data",)

    def __init__(self, *numbers: tuple[int, int]) -> None:
        self._data = bytearray()
        for field, value in numbers:
            self.number(field, value)

    def __bytes__(self) -> bytes:
        return bytes(self._data)

    def number(self, field: int, value: int) -> None:
        """Add an int64, uint64 or bool."""
        if value:
            self._data += varint(field << 3 | _VARINT) + varint(value)

    def numbers(self, field: int, values: Iterable[int]) -> None:
        """Add a repeated int64 or uint64, packed."""
        self._bytes(field, b"".join(map(varint, values)))

    def text(self, field: int, value: str) -> None:
        """Add one of a repeated string, even if empty."""
        self._bytes(field, value.encode("utf-8", "backslashreplace"), even_empty=True)

    def data(self, field: int, value: bytes) -> None:
        """Add one of repeated bytes, even if empty."""
        self._bytes(field, value, even_empty=True)

    def message(self, field: int, value: Message) -> None:
        """Add one of a repeated message, or the only one."""
        self._bytes(field, bytes(value), even_empty=True)

    def _bytes(self, field: int, data: bytes, *, even_empty: bool = False) -> None:
        if data or even_empty:
            self._data += varint(field << 3 | _LENGTH) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """Encode a number of up to 64 bits, seven at a time, lowest first; ten bytes if negative."""
    value &= _MASK
    data = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - what fits seven bits
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


# Profile
_SAMPLE_TYPE, _SAMPLE, _MAPPING, _LOCATION, _FUNCTION, _STRING_TABLE = 1, 2, 3, 4, 5, 6
_TIME_NANOS, _DURATION_NANOS, _PERIOD_TYPE, _PERIOD, _DEFAULT_SAMPLE_TYPE = 9, 10, 11, 12, 14
# ValueType
_TYPE, _UNIT = 1, 2
# Sample
_LOCATION_ID, _VALUE, _LABEL = 1, 2, 3
# Label
_KEY, _STR, _NUM = 1, 2, 3
# Mapping, Location and Function begin with their id
_ID = 1
_START, _LIMIT, _FILE_NAME, _BUILD_ID = 2, 3, 5, 6
_HAS_FUNCTIONS, _HAS_FILES, _HAS_LINES, _HAS_INLINES = 7, 8, 9, 10
_MAPPING_ID, _ADDRESS, _LINE = 2, 3, 4
_FUNCTION_ID, _LINE_NUMBER, _COLUMN = 1, 2, 3
_NAME, _SYSTEM_NAME, _SOURCE = 2, 3, 4


def data(profile: Profile) -> bytes:
    """Return the file's bytes."""
    # No time in the header: equal profiles give equal files.
    return gzip.compress(bytes(_Writer(bounded(profile)).message()), mtime=0)


_Key = tuple[int, int, int]
"""A thread, a stack and a state, as the table of samples has them."""


def _totals(samples: SampleTable) -> dict[_Key, tuple[int, int]]:
    """Return the weight and the processor time of each stack, thread by thread."""
    totals: dict[_Key, tuple[int, int]] = {}
    columns = samples.threads, samples.stacks, samples.states, samples.weights, samples.cpu_ns
    for thread, stack, state, weight, cpu_ns in zip(*columns, strict=True):
        if stack != OUTERMOST:  # only the thread's registers could be captured
            count, used = totals.get((thread, stack, state), (0, 0))
            totals[thread, stack, state] = count + weight, used + max(0, cpu_ns)
    return dict(sorted(totals.items(), key=lambda one: one[0][0]))


class _Writer:
    """Builds the messages of one profile; ids are row numbers from 1."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._functions = functions_of(profile.frames)
        self._strings: dict[str, int] = {"": 0}
        self._mappings = {image: number for number, image in enumerate(profile.named_images, 1)}

    def message(self) -> Message:
        profile, written = self._profile, Message()
        written.message(_SAMPLE_TYPE, self._value_type("samples", "count"))
        written.message(_SAMPLE_TYPE, self._value_type("wall", "nanoseconds"))
        if profile.samples.has_cpu:
            written.message(_SAMPLE_TYPE, self._value_type("cpu", "nanoseconds"))
        for key, (weight, cpu_ns) in _totals(profile.samples).items():
            values = (weight, weight * profile.run.interval_ns, cpu_ns)
            written.message(_SAMPLE, self._sample(key, values[: 2 + profile.samples.has_cpu]))
        for image, number in self._mappings.items():
            written.message(_MAPPING, self._mapping(number, image))
        for number, frame in enumerate(profile.frames):
            written.message(_LOCATION, self._location(number, frame))
        for number, function in enumerate(self._functions.functions, 1):
            written.message(_FUNCTION, self._function(number, function))
        written.number(_TIME_NANOS, profile.run.started_at_ns)
        written.number(_DURATION_NANOS, profile.run.duration_ns)
        written.message(_PERIOD_TYPE, self._value_type("wall", "nanoseconds"))
        written.number(_PERIOD, profile.run.interval_ns)
        written.number(_DEFAULT_SAMPLE_TYPE, self._string("samples"))
        for text in self._strings:
            written.text(_STRING_TABLE, text)
        return written

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _value_type(self, kind: str, unit: str) -> Message:
        return Message((_TYPE, self._string(kind)), (_UNIT, self._string(unit)))

    def _sample(self, key: _Key, values: tuple[int, ...]) -> Message:
        profile, written = self._profile, Message()
        thread, stack, state = key
        written.numbers(_LOCATION_ID, (frame + 1 for frame in profile.stacks.frames_of(stack)))
        written.numbers(_VALUE, values)
        sampled = profile.threads[thread]
        written.message(_LABEL, self._label("thread", sampled.label))
        if sampled.merged is None:
            written.message(_LABEL, Message((_KEY, self._string("tid")), (_NUM, sampled.info.id)))
        if state != UNKNOWN:
            written.message(_LABEL, self._label("state", STATES[state].value))
        return written

    def _label(self, key: str, value: str) -> Message:
        return Message((_KEY, self._string(key)), (_STR, self._string(value)))

    def _mapping(self, number: int, image: BinaryImage) -> Message:
        # Everything that can be known is: pprof need not symbolize again.
        known = (_HAS_FUNCTIONS, _HAS_FILES, _HAS_LINES, _HAS_INLINES)
        return Message(
            (_ID, number),
            (_START, image.load_address),
            (_LIMIT, image.end),
            (_FILE_NAME, self._string(image.path)),
            (_BUILD_ID, self._string(image.identifier or "")),
            *((field, 1) for field in known),
        )

    def _location(self, number: int, frame: ProfileFrame) -> Message:
        written = Message((_ID, number + 1))
        if isinstance(frame, Frame):
            if frame.image is not None:
                written.number(_MAPPING_ID, self._mappings.get(frame.image, 0))
            written.number(_ADDRESS, frame.address.lookup)
        for call in reversed(self._functions.calls[number]):
            line = Message((_FUNCTION_ID, call.function + 1))
            if call.location is not None:
                line.number(_LINE_NUMBER, call.location.line or 0)
                line.number(_COLUMN, call.location.column or 0)
            written.message(_LINE, line)
        return written

    def _function(self, number: int, function: Function) -> Message:
        return Message(
            (_ID, number),
            (_NAME, self._string(function.name)),
            (_SYSTEM_NAME, self._string(function.linkage_name or function.name)),
            (_SOURCE, self._string(function.path)),
        )
