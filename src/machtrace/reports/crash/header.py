"""The header: labels with values, and sections of lines, before the threads."""

from __future__ import annotations

import re

from machtrace.model.report import (
    Incident,
    JsonValue,
    ReportedException,
    ReportedProcess,
    ReportedSystem,
    ReportedTermination,
)
from machtrace.reports.log_lines import accessed_address

LABEL = re.compile(r"(?P<label>[A-Z][A-Za-z0-9 /()-]{1,40}?):(?:[ \t]+(?P<value>.*))?")
MAX_LABEL_LINE_LENGTH = 1 << 16
_PID_DIGITS = 9
_NAMESPACE = re.compile(
    r"Namespace (?P<namespace>[^,]+), (?:Code (?P<code>-?\w+)|\[?(?P<bracket>0x[0-9a-fA-F]+)\]?)"
    r",? ?(?P<indicator>.*)"
)
_PLAIN = re.compile(
    r"(?P<namespace>[A-Z_][A-Z0-9_ ]{0,80}?) (?P<code>-?[0-9]{1,19})(?: (?P<indicator>.*))?"
)
_BRACKETED = re.compile(
    r"(?P<namespace>[A-Z_][A-Z0-9_]{0,80}), \[(?P<code>0x[0-9a-fA-F]{1,16})\] ?(?P<indicator>.*)"
)
_CODES = re.compile(r"0x[0-9a-fA-F]{1,16}(?:, 0x[0-9a-fA-F]{1,16})*")
_NOTHING = ("0", "(null)")
_INFORMATION = "Application Specific Information"
_TERMINATION = "Termination Reason"
_CRASHED = ("Triggered by Thread", "Crashed Thread")
_DIGITS = 20


class Header:
    """Collects lines; those without a field stay under their label."""

    def __init__(self) -> None:
        self._values: dict[str, list[str]] = {}
        self._label = ""

    def read(self, line: str) -> None:
        """Read a line: a label's, or a continuation of the label before."""
        if not line.strip():
            if self._label != _INFORMATION or self._values[_INFORMATION][-1:] == [""]:
                self._label = ""
            else:
                self._values[_INFORMATION].append("")
            return
        match = LABEL.fullmatch(line.rstrip()) if len(line) < MAX_LABEL_LINE_LENGTH else None
        if match is None or (self._label == _INFORMATION and match["value"] is not None):
            self.add(self._label, line)
            return
        self._label = match["label"]
        self._values.setdefault(self._label, [])
        if match["value"]:
            self.add(self._label, match["value"])

    def add(self, label: str, value: str) -> None:
        """Add a value of a label, or a continuation line."""
        self._values.setdefault(label, []).append(value)

    # --- consuming ---

    def _take(self, label: str) -> str | None:
        lines = self._values.pop(label, None)
        return None if lines is None else "\n".join(lines)

    def _take_first(self, *labels: str) -> str | None:
        """Consume the first present of synonymous labels."""
        return next((self._take(label) for label in labels if label in self._values), None)

    def _numbered(self, label: str) -> tuple[str | None, int | None]:
        return numbered(self._take(label))

    def _name_and_build(self, label: str) -> tuple[str | None, str | None]:
        return _name_and_build(self._take(label))

    # --- fields ---

    def incident(self) -> Incident:
        """Return its identifier and time."""
        return Incident(
            id=self._take("Incident Identifier"),
            time=self._take("Date/Time"),
            report_version=self._take("Report Version"),
        )

    def process(self) -> ReportedProcess:
        """Return the process and its parent."""
        name, pid = self._numbered("Process")
        parent, parent_pid = self._numbered("Parent Process")
        coalition, coalition_id = self._numbered("Coalition")
        version, build = self._name_and_build("Version")
        code_type, how = self._name_and_build("Code Type")
        if how not in (None, "Native", "Translated"):
            code_type = f"{code_type} ({how})"
        user = self._values.get("User ID", [])
        user_id = None
        if len(user) == 1 and user[0].isdecimal() and len(user[0]) < _DIGITS:
            user_id = int(user[0])
            del self._values["User ID"]
        return ReportedProcess(
            name=name,
            pid=pid,
            path=self._take("Path"),
            identifier=self._take("Identifier"),
            version=version,
            build=build,
            code_type=code_type,
            is_translated=True if how == "Translated" else None,
            role=self._take("Role"),
            parent=parent,
            parent_pid=parent_pid,
            coalition=coalition,
            coalition_id=coalition_id,
            user_id=user_id,
            launch_time=self._take("Launch Time"),
        )

    def system(self) -> ReportedSystem:
        """Return the machine and its system."""
        name, build = self._name_and_build("OS Version")
        return ReportedSystem(
            model=self._take("Hardware Model"),
            os_name=name,
            os_build=build,
            release_type=self._take("Release Type"),
            baseband_version=self._take("Baseband Version"),
            crash_reporter_key=self._take_first(
                "CrashReporter Key", "Crash Reporter Key", "Anonymous UUID"
            ),
        )

    def exception(self) -> ReportedException | None:
        """Return what the kernel or the runtime reported."""
        text = self._take("Exception Type")
        if text is None:
            return None
        # KSCrash writes zeros for a hang of the main thread: the label's text stays.
        name, signal = (None if part in _NOTHING else part for part in _name_and_build(text))
        codes = self._values.pop("Exception Codes", [])
        subtype = self._take("Exception Subtype")
        if subtype is None and codes and not _CODES.fullmatch(codes[0]) and len(codes) > 1:
            subtype = codes.pop(0)
        joined = "\n".join(codes)
        numbers = joined.split(", ") if _CODES.fullmatch(joined) else []
        return ReportedException(
            type=name,
            signal=signal,
            subtype=subtype,
            codes=joined or None,
            raw_codes=tuple(int(number, 16) for number in numbers),
            message=self._take("Exception Message"),
            address=accessed_address(subtype or joined),
        )

    def termination(self) -> ReportedTermination | None:
        """Return who ended the process, and why."""
        lines = self._values.pop(_TERMINATION, None)
        by_process, by_pid = self._numbered("Terminating Process")
        if lines is None and by_process is None and by_pid is None:
            return None
        first, *reasons = (line for text in lines or [""] for line in text.split("\n"))
        is_short = len(first) < MAX_LABEL_LINE_LENGTH
        match = (
            (_NAMESPACE.fullmatch(first) or _BRACKETED.fullmatch(first) or _PLAIN.fullmatch(first))
            if is_short
            else None
        )
        groups = {} if match is None else match.groupdict()
        code = groups.get("bracket") or groups.get("code")
        return ReportedTermination(
            namespace=groups.get("namespace"),
            code=None if code is None else _integer(code),
            indicator=(first if match is None else groups.get("indicator")) or None,
            reasons=tuple(reasons),
            by_process=by_process,
            by_pid=by_pid,
        )

    def application_information(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the images' last words; the text does not state which images wrote them."""
        sections = (text.removeprefix("\n") for text in self._values.pop(_INFORMATION, []))
        lines = "\n".join(sections).split("\n")
        while lines and not lines[-1]:
            lines.pop()
        return (("", tuple(lines)),) if lines else ()

    @property
    def crashed_thread(self) -> int | None:
        """The number of the thread that the header names."""
        for label in _CRASHED:
            text = " ".join(self._values.get(label, []))[:_DIGITS].split(" ", 1)[0].rstrip(",")
            if text.isdecimal():
                return int(text)
        return None

    def details(self) -> dict[str, JsonValue]:
        """Return what has no field, by label. Call last."""
        details: dict[str, JsonValue] = {
            label: "\n".join(lines) for label, lines in self._values.items()
        }
        for label in _CRASHED:
            text = details.get(label)
            if isinstance(text, str) and text.isdecimal():
                del details[label]
        return details


def numbered(text: str | None) -> tuple[str | None, int | None]:
    """Split name and number of ``launchd [1]``."""
    if text is None or not text.endswith("]"):
        return text, None
    name, bracket, digits = text[:-1].rpartition("[")
    if not bracket or not (digits.isdecimal() and digits.isascii()) or len(digits) > _PID_DIGITS:
        return text, None
    name = name.removesuffix(" ")
    return None if name == "???" else name, int(digits)


def _name_and_build(text: str | None) -> tuple[str | None, str | None]:
    """Split name and bracketed build of ``1.0 (1)``."""
    if text is None or not text.endswith(")"):
        return text, None
    name, bracket, build = text[:-1].partition(" (")
    if not bracket:
        return text, None
    return None if name == "???" else name, build


def _integer(text: str) -> int | None:
    """Parse a decimal or hexadecimal number; None for names and oversized numbers."""
    if len(text) > _DIGITS or not text.lstrip("-")[:1].isdecimal():
        return None
    try:
        return int(text, 0)
    except ValueError:
        return None
