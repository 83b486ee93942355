"""Frida's Python library, behind :class:`~machtrace.targets.frida.agent.FridaAgent`.

The only module that imports it. Every call to it has a time limit; what comes
after the limit, or after Ctrl-C, is undone when it comes, so that no process keeps a script.

Waiting for what cannot be cancelled: what comes too late is undone when it comes.
"""

from __future__ import annotations

import importlib
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from errno import EPERM
from importlib import resources
from typing import Any, Generic, TypeVar

from machtrace.errors import (
    ConnectionLostError,
    MachtraceError,
    MissingExtraError,
    RemoteProtocolError,
    TargetAccessError,
    TargetError,
    TargetGoneError,
    TargetSpecError,
)
from machtrace.frozen import dataclass
from machtrace.targets.frida.agent import Answer, Part, wrong
from machtrace.targets.frida.local_process import FridaTraces, check_runs
from machtrace.targets.frida.spec import FridaSpec, Reach

# --- Frida's exceptions as ours ---

_MESSAGE_MAX = 400


def error_of(error: Exception, spec: FridaSpec) -> MachtraceError:
    """Return our error for an exception of Frida's, which is recognised by its name."""
    reason = " ".join(str(error).split())[:_MESSAGE_MAX] or type(error).__name__
    make = _KINDS.get(type(error).__name__, _other)
    return make(reason, spec)


def _no_process(reason: str, spec: FridaSpec) -> MachtraceError:
    if spec.pid is not None:
        return TargetGoneError(f"no {spec.process} on {spec.place} ({reason})", pid=spec.pid)
    return TargetSpecError(
        f"no process {spec.process} on {spec.place} ({reason})",
        remedy="pass its id, its name or its bundle identifier; frida-ps lists them",
    )


def _no_server(reason: str, spec: FridaSpec) -> MachtraceError:
    return ConnectionLostError(
        f"no frida-server responds: {spec.place} ({reason})",
        remedy="start frida-server there, of this machine's version of Frida, listening on that "
        "address",
    )


def _refused(reason: str, spec: FridaSpec) -> MachtraceError:
    if spec.reach is Reach.LOCAL:
        remedy = (
            "run as the process' user or as root; on Linux see kernel.yama.ptrace_scope, on macOS "
            "the process must be debuggable (get-task-allow)"
        )
    else:
        remedy = "run frida-server as root, or attach to an application that is debuggable"
    return TargetAccessError(
        f"Frida may not attach to {spec.process} on {spec.place} ({reason})",
        pid=spec.pid or 0,
        errno=EPERM,
        remedy=remedy,
    )


def _silent(reason: str, spec: FridaSpec) -> MachtraceError:
    return ConnectionLostError(
        f"{spec.process} on {spec.place} does not respond to Frida ({reason})",
        remedy="check whether the process is stopped, is suspended in the background, or has a "
        "debugger",
    )


def _broken(reason: str, spec: FridaSpec) -> MachtraceError:
    return ConnectionLostError(
        f"the connection broke: {spec.place} ({reason})",
        remedy="check whether frida-server still runs and has this machine's version of Frida",
    )


def _odd(reason: str, spec: FridaSpec) -> MachtraceError:
    return RemoteProtocolError(
        f"{spec.place} does not use Frida's protocol",
        request="Frida",
        reply=reason,
        remedy="install the same version of Frida on both sides",
    )


def _not_supported(reason: str, spec: FridaSpec) -> MachtraceError:
    return TargetError(
        f"Frida cannot be loaded into {spec.process} on {spec.place} ({reason})",
        remedy="choose a process of that machine's architecture; check whether frida-trace can "
        "attach to it",
    )


def _other(reason: str, spec: FridaSpec) -> MachtraceError:
    return TargetError(
        f"Frida failed on {spec.process} on {spec.place} ({reason})",
        remedy="check whether frida-trace can attach to it, with the same version of Frida on both "
        "sides",
    )


_KINDS: dict[str, Callable[[str, FridaSpec], MachtraceError]] = {
    "ProcessNotFoundError": _no_process,
    "ServerNotRunningError": _no_server,
    "PermissionDeniedError": _refused,
    "ProcessNotRespondingError": _silent,
    "TimedOutError": _silent,
    "OperationCancelledError": _silent,
    "TransportError": _broken,
    "InvalidOperationError": _broken,
    "ProtocolError": _odd,
    "NotSupportedError": _not_supported,
    "ExecutableNotSupportedError": _not_supported,
    "ExecutableNotFoundError": _not_supported,
}


# --- Frida's Python library, behind :class:`~machtrace.targets.frida.agent.FridaAgent` ---

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[_Result]):
    found: _Result | None
    failure: BaseException | None


def within(
    seconds: float, work: Callable[[], _Result], undo: Callable[[_Result], object] | None = None
) -> _Result:
    """Run ``work`` on a thread of its own and return its result.

    Args:
        seconds: how long it may take.
        work: what it raises is raised here.
        undo: called with what comes after the time is over, or after Ctrl-C.

    Raises:
        TimeoutError: it did not come in time.
    """
    done: queue.SimpleQueue[_Outcome[_Result]] = queue.SimpleQueue()
    turn, left = threading.Lock(), threading.Event()

    def take_back(outcome: _Outcome[_Result]) -> None:
        if undo is not None and outcome.found is not None:
            undo(outcome.found)

    def run() -> None:
        try:
            outcome = _Outcome(work(), None)
        except BaseException as error:  # noqa: BLE001 - raised again, in the caller's thread
            outcome = _Outcome(None, error)
        with turn:
            if not left.is_set():
                done.put(outcome)
                return
        take_back(outcome)

    threading.Thread(target=run, name="machtrace frida", daemon=True).start()
    try:
        outcome = done.get(timeout=seconds)
    except BaseException as error:
        with turn:
            left.set()
        if not done.empty():
            take_back(done.get())
        if isinstance(error, queue.Empty):
            raise TimeoutError from None
        raise
    if outcome.failure is not None:
        raise outcome.failure
    return outcome.found  # type: ignore[return-value]  # what `work` gave, None included


_MAX_BYTES = 1 << 30
"""Bytes of one answer."""
_MAX_MESSAGES = 1 << 16
_LEAVING = 5.0
"""Seconds that detaching may take."""
_SCRIPT = "agent.js"
_SOURCES = {
    "linux": ("linux_registers.c", "linux.c"),
    "darwin": ("darwin.c",),
}

_UNOBTRUSIVE = {
    "exceptor": "off",
    "unwind_broker": False,
    "exit_monitor": False,
    "thread_suspend_monitor": False,
}
"""Hooks that Frida installs for other scripts: signal handlers, exit, unwinding."""

_Found = TypeVar("_Found")


def agent_source() -> str:
    """Read the script."""
    return _read(_SCRIPT)


def script_source(name: str) -> str:
    """Read another script, by its file's name."""
    return _read(name)


def c_sources() -> dict[str, str]:
    """C sources that the script compiles in the process, by platform."""
    return {
        platform: "".join(f'#line 1 "{name}"\n{_read(name)}' for name in names)
        for platform, names in _SOURCES.items()
    }


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def library() -> Any:  # noqa: ANN401 - it is there or not, so nothing is known of its types
    """Import the library.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module("frida")
    except ImportError as error:
        raise MissingExtraError("frida://", extra="frida") from error


class FridaScript:
    """The script in one process, loaded.

    Raises:
        MissingExtraError: Frida is not installed.
        TargetSpecError: there is no such device or process, or it is this one.
        TargetGoneError: there is no process of that id.
        TargetAccessError: Frida may not attach to it.
        ConnectionLostError: no server answers, or not in time.
        TargetError: Frida cannot load the script there.
    """

    def __init__(self, spec: FridaSpec, source: str, *, spawn: bool = False) -> None:
        """Load the script.

        Args:
            spec: the process; with ``spawn`` the program's path or the app's bundle identifier.
            source: the script.
            spawn: whether the process is started. It waits before its first initialiser until
                :meth:`resume`, and is ended by :meth:`close` if that was not called.
        """
        self._spec = spec
        self._suspended: Any = None
        self._frida = library()
        self._messages: queue.SimpleQueue[tuple[Any, bytes | None]] = queue.SimpleQueue()
        self._count = 0
        self._bytes = 0
        self._number = 0
        self._ended: str | None = None
        self._traces: FridaTraces | None = None
        self._session: Any = None
        self._script: Any = None
        try:
            device = self._within(lambda: _device(self._frida, spec), "give the device")
            if spawn:
                self.pid = self._within(lambda: device.spawn(spec.name), "start the process")
                self._suspended = device
            else:
                self.pid = self._within(lambda: _process_id(device, spec), "list the processes")
            if spec.reach is Reach.LOCAL:
                if not spawn:
                    check_runs(self.pid)
                self._traces = FridaTraces(self.pid)
            self._session = self._within(
                lambda: device.attach(self.pid, **_UNOBTRUSIVE), "attach", _detach
            )
            if self._traces is not None:
                self._traces.look()
            self._session.on("detached", self._detached)
            self._script = self._within(self._load(source), "load the script")
        except BaseException:
            self.close()
            raise

    @property
    def has_ended(self) -> bool:
        """Whether the process, or the connection to it, is gone."""
        return self._ended is not None

    def ask(self, call: str, *arguments: object) -> Answer:
        """See :meth:`~machtrace.targets.frida.agent.FridaAgent.ask`."""
        if self._script is None:
            raise self._gone("is closed")
        self._number += 1
        self._count = self._bytes = 0
        while not self._messages.empty():
            self._messages.get_nowait()
        if self._ended is not None:
            raise self._gone(f"has ended ({self._ended})")
        request = {"id": self._number, "call": call, "args": list(arguments)}
        deadline = time.monotonic() + self._spec.timeout
        try:
            self._script.post(request)
            return self._answer(call, deadline)
        except MachtraceError:
            raise
        except Exception as error:
            raise self._told(error) from error

    def resume(self) -> None:
        """Let a process that was started run."""
        device, self._suspended = self._suspended, None
        if device is not None:
            self._within(lambda: device.resume(self.pid), "start the process")

    def close(self) -> None:
        """See :meth:`~machtrace.targets.frida.agent.FridaAgent.close`."""
        device, self._suspended = self._suspended, None
        if device is not None:
            with suppress(TargetError):
                self._within(lambda: device.kill(self.pid), "end the process", seconds=_LEAVING)
        session, self._session, self._script = self._session, None, None
        if session is None:
            return
        try:
            self._within(lambda: _detach(session), "detach", seconds=_LEAVING)
        except TargetError:
            return  # it is gone, or its side takes the script away when this one ends
        if self._traces is not None:
            self._traces.wait_until_gone()

    # --- messages ---

    def _load(self, source: str) -> Callable[[], Any]:
        def load() -> Any:  # noqa: ANN401
            script = self._session.create_script(source, name="machtrace", runtime="qjs")
            script.set_log_handler(lambda _level, _text: None)
            script.on("message", self._take)
            script.load()
            return script

        return load

    def _take(self, message: Any, data: bytes | None) -> None:  # noqa: ANN401 (a thread of Frida's)
        self._count += 1
        self._bytes += len(data or b"")
        if self._count <= _MAX_MESSAGES and self._bytes <= _MAX_BYTES:
            self._messages.put((message, data))
        elif self._count == _MAX_MESSAGES + 1 or data:
            self._messages.put(({"type": "flood"}, None))

    def _detached(self, reason: Any, *_: object) -> None:  # noqa: ANN401 (a thread of Frida's)
        self._ended = str(reason)
        self._messages.put(({"type": "detached"}, None))

    def _answer(self, call: str, deadline: float) -> Answer:
        parts: list[Part] = []
        while True:
            try:
                message, data = self._messages.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise self._silent(f"answer {call!r}") from None
            kind = message.get("type") if isinstance(message, dict) else None
            if kind == "detached":
                raise self._gone(f"ended during the request {call!r} ({self._ended})")
            if kind == "flood":
                raise wrong("no end of messages", call, self._count)
            if kind == "error":
                raise wrong("an exception", call, message.get("description"))
            payload = message.get("payload") if kind == "send" else None
            if not isinstance(payload, dict) or payload.get("id") != self._number:
                continue  # the reply to an earlier request that timed out
            if "part" in payload:
                parts.append(Part(str(payload["part"]), data or b""))
            elif "error" in payload:
                raise wrong("up", call, payload["error"])
            else:
                return Answer(payload.get("value"), tuple(parts))

    # --- time limits and errors ---

    def _within(
        self,
        work: Callable[[], _Found],
        action: str,
        undo: Callable[[_Found], object] | None = None,
        *,
        seconds: float | None = None,
    ) -> _Found:
        limit = self._spec.timeout if seconds is None else seconds
        try:
            return within(limit, work, undo)
        except MachtraceError:
            raise
        except TimeoutError:
            raise self._silent(action, limit) from None
        except Exception as error:
            raise self._told(error) from error

    def _silent(self, action: str, limit: float | None = None) -> ConnectionLostError:
        seconds = self._spec.timeout if limit is None else limit
        return ConnectionLostError(
            f"Frida did not {action} within {seconds:g} s: {self._spec.process} on "
            f"{self._spec.place}",
            remedy="check whether the process is stopped or the device asleep, or raise the limit "
            "with ?timeout=SECONDS",
        )

    def _gone(self, how: str) -> TargetError:
        message = f"{self._spec.process} on {self._spec.place} {how}"
        if self._ended in ("process-terminated", "process-replaced"):
            return TargetGoneError(message, pid=self.pid)
        return ConnectionLostError(message, remedy="connect again")

    def _told(self, error: Exception) -> MachtraceError:
        if self._ended is not None:
            return self._gone(f"has ended ({self._ended})")
        return error_of(error, self._spec)


def _detach(session: Any) -> None:  # noqa: ANN401
    session.detach()


def _device(frida: Any, spec: FridaSpec) -> Any:  # noqa: ANN401
    if spec.reach is Reach.LOCAL:
        return frida.get_local_device()
    manager = frida.get_device_manager()
    if spec.reach is Reach.REMOTE:
        options = {} if spec.token is None else {"token": spec.token}
        return manager.add_remote_device(spec.address, **options)
    attached = [
        device
        for device in manager.enumerate_devices()
        if device.type == "usb" and spec.address in ("", device.id)
    ]
    if len(attached) == 1:
        return attached[0]
    if not attached:
        raise ConnectionLostError(
            f"{spec.place} does not exist",
            remedy="connect it, unlock it, trust this computer, and start frida-server on it; "
            "frida-ls-devices lists what Frida sees",
        )
    ids = ", ".join(str(device.id) for device in attached)
    raise TargetSpecError(
        f"{len(attached)} USB devices are connected: {ids}",
        remedy="choose one: frida://usb:DEVICE-ID/NAME",
    )


def _process_id(device: Any, spec: FridaSpec) -> int:  # noqa: ANN401
    pid = _process_named(device, spec) if spec.pid is None else spec.pid
    if spec.reach is Reach.LOCAL and pid == os.getpid():
        raise TargetSpecError(
            f"process {pid} is this process, which cannot wait for itself",
            remedy="use the target self, or capture it from another process",
        )
    return pid


def _process_named(device: Any, spec: FridaSpec) -> int:  # noqa: ANN401
    """Return the id of the only process or running application of that name."""
    wanted = spec.name.casefold()
    processes = [(process.pid, str(process.name)) for process in device.enumerate_processes()]
    matching = {pid for pid, name in processes if name == spec.name}
    if not matching:
        matching = {pid for pid, name in processes if name.casefold() == wanted}
    if not matching:
        applications = list(device.enumerate_applications())
        matching = {
            process.pid
            for process in applications
            if process.pid and spec.name in (process.identifier, process.name)
        }
        if not matching and any(
            spec.name in (process.identifier, process.name) for process in applications
        ):
            raise TargetSpecError(
                f"{spec.name!r} is not running on {spec.place}", remedy="start the application"
            )
    matching.discard(0)
    if len(matching) == 1:
        return int(matching.pop())
    if matching:
        ids = ", ".join(str(pid) for pid in sorted(matching))
        raise TargetSpecError(
            f"{len(matching)} processes are named {spec.name!r} on {spec.place}: {ids}",
            remedy="pass the id of one of them",
        )
    raise TargetSpecError(
        f"no process is named {spec.name!r} on {spec.place}",
        remedy="pass its id, its name or its bundle identifier; frida-ps lists them",
    )


def check_version(version: str) -> None:
    """See that the other side speaks the script's language.

    Raises:
        RemoteProtocolError: it is older.
    """
    oldest = 17
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) < oldest:
        raise RemoteProtocolError(
            f"Frida in the process is older than {oldest}",
            request="version",
            reply=version[:20],
            remedy="install the same version of Frida on both sides",
        )
