"""The agent in a process that Frida reaches: loaded, started and stopped there, its spool read.

Nothing of the recording is Frida's: hooks, stacks and their table are the agent's, in C. Frida
loads the library, calls ``machtrace_start`` and ``machtrace_stop``, and copies the file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from machtrace.errors import RemoteProtocolError, TargetError
from machtrace.targets.frida.agent import Fields
from machtrace.targets.frida.script import FridaScript, check_version, script_source
from machtrace.targets.frida.spec import Reach, parse_spec

_SPOOL_SIZE = 1 << 26
"""Bytes; the file is sparse."""
_MAX_ERROR = 4095
_REMEDY = "stop the agent there, or read the spool that it writes"


class FridaRecorder:
    """The agent in a process, which runs on.

    Raises:
        MissingExtraError, TargetSpecError, TargetGoneError, TargetAccessError,
        ConnectionLostError, TargetError: see :func:`machtrace.open_target`.
    """

    def __init__(self, spec: str, *, spawn: bool = False) -> None:
        """Attach to the process, or start it.

        Args:
            spec: a ``frida://`` target.
            spawn: whether the target names a program or an app that is to be started; it runs when
                the agent has started.
        """
        self._spec = parse_spec(spec)
        self._script = FridaScript(self._spec, script_source("recorder.js"), spawn=spawn)
        self.pid = self._script.pid
        self._path = ""
        self._has_stopped = False
        try:
            facts = Fields(self._script.ask("begin").value, "begin")
            check_version(facts.text("version"))
            self.platform = facts.text("platform")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_local(self) -> bool:
        """Whether the process is one of this machine."""
        return self._spec.reach is Reach.LOCAL

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, or the connection to it."""
        return self._script.has_ended

    def start(
        self, functions: Sequence[str], *, consent: str | None = None, library: Path | None = None
    ) -> None:
        """Start recording.

        Args:
            functions: what is watched, by the names of C functions or methods.
            consent: that of them by which the user consents.
            library: the agent on the process's machine, if the process does not have it.

        Raises:
            TargetError: the agent cannot be loaded or started.
            TargetGoneError, ConnectionLostError, RemoteProtocolError: see ``targets.frida.agent``.
        """
        options = {
            "functions": list(functions),
            "consent": consent,
            "library": None if library is None else str(library),
            "folder": "",
            "spool_size": _SPOOL_SIZE,
        }
        try:
            started = Fields(self._script.ask("start", options).value, "start")
        except RemoteProtocolError as error:
            raise TargetError(
                f"the agent cannot be loaded into process {self.pid}: {error}",
                remedy="pass the agent for the process's system with --agent, by its path there",
            ) from None
        if started.flag("runs_already"):
            raise TargetError(f"the agent runs already in process {self.pid}", remedy=_REMEDY)
        number = started.number("error", _MAX_ERROR)
        if number:
            reason = os.strerror(number) if self.is_local else f"error {number}"
            raise TargetError(
                f"the agent cannot start in process {self.pid}: {reason}",
                remedy="check whether the process may write to its temporary folder",
            )
        self._path = started.text("path")
        self._script.resume()

    def stop(self) -> bytes:
        """Stop recording, and return the spool.

        Of a process of this machine that has ended, the spool has what it had written.

        Raises:
            TargetGoneError, ConnectionLostError, RemoteProtocolError: it cannot be had.
        """
        if self.has_ended and self.is_local:
            return self._left_over()
        try:
            self._script.ask("stop")
            parts = self._script.ask("take", self._path).parts
        except TargetError:
            if self.is_local and self.has_ended:
                return self._left_over()
            raise
        return b"".join(part.data for part in parts)

    def close(self) -> None:
        """Detach; the process runs on. Raises nothing."""
        self._script.close()

    def _left_over(self) -> bytes:
        path = Path(self._path)
        data = path.read_bytes()
        path.unlink(missing_ok=True)
        return data
