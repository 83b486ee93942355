"""Making the indices of object files: many in a child process, kept by what the files hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice

from machtrace.errors import FileAccessError, FormatError
from machtrace.lines.child_process import run_worker
from machtrace.lines.object_worker import RECORD
from machtrace.images.open_file import open_image_file
from machtrace.lines.index_builder import DEFAULT_LIMITS, BuildLimits
from machtrace.lines.index_folder import IndexFolder
from machtrace.lines.symcache import VERSION, SymCache

_OBJECT_WORKER = "machtrace.lines.object_worker"
_BATCH = 64 << 20
"""Bytes of object files for one child, which takes a tenth of a second to start."""
_MOST_IN_BATCH = 512
_OBJECT_REVISION = 1


@dataclass(frozen=True, slots=True)
class ObjectBytes:
    """An object file to make an index of."""

    source: str
    """What to call it in errors."""
    data: bytes | bytearray


@dataclass(frozen=True, slots=True)
class ObjectIndices:
    """Makes indices, and keeps them where there is a folder for that."""

    folder: IndexFolder | None = None
    limits: BuildLimits = DEFAULT_LIMITS

    def make(self, objects: Sequence[ObjectBytes]) -> list[SymCache | str]:
        """The index of each object file, or why there is none. Raises nothing."""
        found: list[SymCache | str | None] = [self._kept(one) for one in objects]
        missing = [number for number, one in enumerate(found) if one is None]
        for batch in _batches(missing, objects):
            made = self._made([objects[number] for number in batch])
            for number, index in zip(batch, made, strict=True):
                found[number] = self._checked(objects[number], index)
        return ["no index was made" if one is None else one for one in found]

    def _kept(self, one: ObjectBytes) -> SymCache | None:
        if self.folder is None:
            return None
        name = _object_index_name(one)
        path = self.folder.path(name)
        try:
            cache = SymCache(open_image_file(path), str(path))
        except (FileAccessError, FormatError):
            return None
        self.folder.used(name)
        return cache

    def _checked(self, one: ObjectBytes, index: bytes | str) -> SymCache | str:
        if isinstance(index, str):
            return index
        try:
            cache = SymCache(index, f"index of {one.source}")
        except FormatError as error:
            return f"an index was made that is bad ({error})"
        if self.folder is not None and self.folder.write(_object_index_name(one), index):
            self.folder.evict(keep=_object_index_name(one))
        return cache

    def _made(self, objects: list[ObjectBytes]) -> list[bytes | str]:
        """Of each its index or the reason; a child that dies is followed by one for the rest."""
        made: list[bytes | str] = []
        while len(made) < len(objects):
            rest = objects[len(made) :]
            done, reason = self._run(rest)
            made += done
            if len(done) < len(rest):
                made.append(reason)
        return made

    def _run(self, objects: list[ObjectBytes]) -> tuple[list[bytes | str], str]:
        size = sum(len(one.data) for one in objects)
        task = replace(self.limits.task(size), output=self.limits.output)  # of each object file
        sizes = [str(len(one.data)) for one in objects]
        answer = run_worker(
            _OBJECT_WORKER,
            [task.text(), *sizes],
            b"".join(one.data for one in objects),
            seconds=self.limits.patience * self.limits.seconds_for(size),
        )
        reason = answer.problem or "no answer"
        if not answer.was_started:
            return [reason] * len(objects), reason
        return list(islice(_records(answer.output), len(objects))), reason


def _records(output: bytes) -> Iterator[bytes | str]:
    at = 0
    while at + RECORD.size <= len(output):
        status, size = RECORD.unpack_from(output, at)
        at += RECORD.size
        content = output[at : at + size]
        if len(content) < size:
            return
        yield content if status == 0 else content.decode("utf-8", "replace")
        at += size


def _batches(numbers: list[int], objects: Sequence[ObjectBytes]) -> Iterator[list[int]]:
    batch: list[int] = []
    size = 0
    for number in numbers:
        if batch and (size + len(objects[number].data) > _BATCH or len(batch) == _MOST_IN_BATCH):
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += len(objects[number].data)
    if batch:
        yield batch


def _object_index_name(one: ObjectBytes) -> str:
    """Object files have no identifier: the name is made from all that they hold."""
    return f"object-{blake2b(one.data, digest_size=20).hexdigest()}-{VERSION}.{_OBJECT_REVISION}"
