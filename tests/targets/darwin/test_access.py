"""Why macOS denies access to a process, and the remedies."""

from __future__ import annotations

import re
from dataclasses import replace
from errno import EPERM, ESRCH
from pathlib import Path

import pytest

from machtrace.errors import TargetAccessError, TargetGoneError
from machtrace.targets.darwin import extension
from machtrace.targets.darwin.process import ProcessFacts, Rights
from machtrace.targets.darwin.task import PortRefusal, access_error, refusal

GET_TASK_ALLOW = 0x4
RUNTIME = 0x10000
PLATFORM_BINARY = 0x4000000
CSR_ALLOW_TASK_FOR_PID = 0x4

PROCESS = ProcessFacts(
    parent=1,
    users=frozenset({501}),
    flags=0x10,
    status=2,
    name="Demo",
    path="/Applications/Demo.app/Contents/MacOS/Demo",
    cpu=None,
    code_signing=GET_TASK_ALLOW,
)
RIGHTS = Rights(
    user=501,
    integrity=0,
    has_debugger_entitlement=False,
    is_translated=False,
    address_bits=47,
    cpu_type=0x100000C,
)
REFUSED = PortRefusal(read_errno=EPERM, control_result=5, name_result=0)


def denial(process: ProcessFacts = PROCESS, rights: Rights = RIGHTS) -> tuple[str, str]:
    """Return the message and the remedy."""
    reason = refusal(77, process, rights)
    return reason.what, reason.remedy


def test_another_users_process_requires_that_user_or_root() -> None:
    """So does a process that changed its user."""
    message, remedy = denial(replace(PROCESS, users=frozenset({0})))
    assert message == "process 77 (Demo) belongs to user 0, not 501"
    assert "sudo" in remedy
    message, remedy = denial(replace(PROCESS, users=frozenset({501, 0})))
    assert "0/501" in message
    message, remedy = denial(replace(PROCESS, flags=0x2010))
    assert "changed its user" in message


@pytest.mark.parametrize("user", [0, 501])
def test_system_programs_are_protected_from_root_too(user: int) -> None:
    """Unless System Integrity Protection is off, or the part of it for debugging."""
    protected = replace(PROCESS, users=frozenset({user}), code_signing=PLATFORM_BINARY | RUNTIME)
    message, remedy = denial(protected, replace(RIGHTS, user=user))
    assert "System Integrity Protection" in message
    assert "/usr/bin/python3" in remedy
    message, _ = denial(protected, replace(RIGHTS, user=user, integrity=CSR_ALLOW_TASK_FOR_PID))
    assert "Integrity" not in message


@pytest.mark.parametrize("user", [0, 501])
def test_the_remedy_for_a_hardened_program_names_the_entitlement(user: int) -> None:
    """And the command that adds it."""
    hardened = replace(PROCESS, users=frozenset({user}), code_signing=RUNTIME)
    message, remedy = denial(hardened, replace(RIGHTS, user=user))
    assert "hardened runtime" in message
    assert "codesign" in remedy
    assert "com.apple.security.get-task-allow" in remedy
    message, _ = denial(replace(hardened, code_signing=RUNTIME | GET_TASK_ALLOW))
    assert "hardened" not in message


def test_an_ordinary_user_gets_all_three_remedies() -> None:
    _, remedy = denial()
    assert "sudo" in remedy
    assert "com.apple.security.cs.debugger" in remedy
    assert "com.apple.security.get-task-allow" in remedy


@pytest.mark.parametrize("rights", [{"user": 0}, {"has_debugger_entitlement": True}], ids=str)
def test_a_permitted_user_gets_only_the_remaining_reasons(rights: dict[str, int]) -> None:
    _, remedy = denial(rights=replace(RIGHTS, **rights))
    assert "security product" in remedy
    assert "sign this Python" not in remedy


def test_the_error_has_the_kernels_results() -> None:
    """As facts for a bug report, and as attributes."""
    error = access_error(77, PROCESS, RIGHTS, REFUSED)
    assert isinstance(error, TargetAccessError)
    assert str(error).endswith("(task_read_for_pid: EPERM, task_for_pid: KERN_FAILURE)")
    gone = access_error(77, PROCESS, RIGHTS, replace(REFUSED, read_errno=ESRCH))
    assert isinstance(gone, TargetGoneError)


def test_kernel_results_have_the_names_in_apples_headers() -> None:
    """The names and numbers of mach/kern_return.h and mach/message.h."""
    ziglang = pytest.importorskip("ziglang", reason="ziglang carries Apple's headers")
    folder = Path(ziglang.__file__).parent / "lib/libc/include/any-darwin-any/mach"
    known: dict[int, str] = {}
    for header, prefix in (("kern_return.h", "KERN_"), ("message.h", "MACH_(?:SEND|RCV)_")):
        text = (folder / header).read_text(encoding="utf-8")
        for name, value in re.findall(rf"#define\s+({prefix}\w+)\s+(0x[0-9a-f]+|\d+)\b", text):
            if prefix == "KERN_" or int(value, 0) >> 28:
                known[int(value, 0)] = name
    names = {number: extension.result_name(number) for number in known}
    named = {number: name for number, name in names.items() if not name.startswith("0x")}
    assert named
    assert named == {number: known[number] for number in named}
    assert extension.result_name(0x7777) == "0x7777"
