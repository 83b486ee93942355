"""A headless Chromium, spoken to through a pipe: what a page does when people use it.

Source of the conversation: the Chrome DevTools Protocol (chromedevtools.github.io); over
``--remote-debugging-pipe`` a message is JSON with a zero byte after it, to file descriptor 3 and
from 4.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--remote-debugging-pipe", "--disable-background-networking", "--disable-extensions"),
    *("--allow-file-access-from-files", "--window-size=1200,900"),
)
_PATIENCE = 60.0
"""Seconds for an answer: machines that test are busy."""
_PIECE = 1 << 16
_START = """import fcntl, os, sys
to, out_of = (fcntl.fcntl(int(one), fcntl.F_DUPFD_CLOEXEC, 10) for one in sys.argv[1:3])
os.dup2(to, 3)
os.dup2(out_of, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Gives the program its descriptors 3 and 4."""


def chromium_program() -> str | None:
    """Return Chromium's path, if it is installed."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Page:
    """A page that is open."""

    def __init__(self, to: int, out_of: int) -> None:
        self._to, self._from = to, out_of
        self._readable = select.poll()
        self._readable.register(out_of, select.POLLIN)
        self._rest = b""
        self._count = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        """Messages of the console and of the page's policy, and errors of scripts."""
        self.requests: list[str] = []
        """Requested addresses."""

    def begin(self) -> None:
        """Open an empty page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, and wait for the answer.

        Raises:
            RuntimeError: it reports an error, or nothing for a minute.
        """
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        written = json.dumps(message).encode() + b"\0"
        while written:
            written = written[os.write(self._to, written) :]
        end = monotonic() + _PATIENCE
        while True:
            answer = self._next(end)
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            # poll: a descriptor may be above what select() can hold.
            ready = self._readable.poll(max(0.0, end - monotonic()) * 1000)
            piece = os.read(self._from, _PIECE) if ready else b""
            if not piece:
                raise RuntimeError("Chromium does not answer")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        method, said = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(said["exceptionDetails"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.complaints.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a file, and wait until it is there."""
        self.visit(path.as_uri() + fragment)

    def visit(self, address: str) -> None:
        """Open an address, and wait until it is there."""
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete'")

    def size(self, width: int, height: int = 900) -> None:
        """Let the page see another size of the window, in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def strike(self, key: str, code: int) -> None:
        """Press and release a key that is no letter, by its name and Windows' virtual key code."""
        named = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call(
            "Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **named, **text
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def value(self, expression: str) -> Any:
        """Evaluate an expression of JavaScript."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Evaluate an expression until it is true.

        Raises:
            RuntimeError: it is not within a minute.
        """
        end = monotonic() + _PATIENCE
        while not (value := self.value(expression)):
            if monotonic() > end:
                raise RuntimeError(f"not so: {expression}")
            sleep(0.05)
        return value

    def press(self, key: str, text: str = "") -> None:
        """Press and release a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        """Write into what has the focus."""
        self.call("Input.insertText", text=text)

    def media(self, **features: str) -> None:
        """Let the page see other preferences of the user: ``prefers_color_scheme="dark"``."""
        named = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.call("Emulation.setEmulatedMedia", features=named)

    def picture(self) -> bytes:
        """Return a screenshot as PNG."""
        return b64decode(self.call("Page.captureScreenshot")["data"])


@contextmanager
def chromium_page(folder: Path) -> Iterator[Page]:
    """Start a Chromium with one page, and end it with the context.

    Args:
        folder: an empty one, for what it keeps.

    Raises:
        FileNotFoundError: it is not installed.
    """
    program = chromium_program()
    if program is None:
        raise FileNotFoundError("chromium")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = [program, *_ARGUMENTS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(theirs_in), str(theirs_out), *command],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(folder)},
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        page = Page(ours_out, ours_in)
        page.begin()
        yield page
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(ours_out)
        os.close(ours_in)
