"""The C sources that Frida compiles in a process need nothing that its compiler lacks."""

from __future__ import annotations

import random
import re
import shutil
import subprocess

import pytest

from machtrace.targets.frida.script import c_sources

pytestmark = pytest.mark.peer

COMPILERS = {"gcc": ("gcc", "-m32", "-O0", "-ffreestanding"), "tcc": ("i386-tcc",)}
NUMBERS = re.compile(r"\bSYS_\w+")


def compiled(name: str, source: str, tmp_path) -> str:
    """Compile for i386, and return the undefined symbols."""
    command = COMPILERS[name]
    if shutil.which(command[0]) is None or shutil.which("nm") is None:
        pytest.skip(f"{command[0]} and nm are not installed")
    code, out = tmp_path / "agent.c", tmp_path / "agent.o"
    code.write_text("int x;\n")
    if subprocess.run(
        [*command, "-c", code, "-o", out], capture_output=True, check=False
    ).returncode:
        pytest.skip(f"{command[0]} does not compile for i386")
    code.write_text(source)
    defines = [f"-D{number}=1" for number in sorted(set(NUMBERS.findall(source)) - {"SYS_"})]
    subprocess.run([*command, *defines, "-c", code, "-o", out], check=True)
    return subprocess.run(["nm", "-u", out], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_sources_for_32_bits_call_no_arithmetic_of_a_runtime(platform, compiler, tmp_path):
    """Frida's compiler has no library with 64-bit division or shifts."""
    undefined = compiled(compiler, c_sources()[platform], tmp_path)
    assert "syscall" in undefined or "thread_info" in undefined
    assert re.findall(r"\b__\w*[ds]i[23]\b", undefined) == []


def test_the_check_sees_such_calls(tmp_path):
    source = "unsigned long long f(unsigned long long a, unsigned long long b) { return a % b; }"
    assert "__umoddi3" in compiled("gcc", source, tmp_path)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_the_clock_s_division_is_exact(tmp_path):
    """It is done bit by bit."""
    random_numbers = random.Random(3)  # noqa: S311 - not for secrets
    cases = [(0, 1), (1, 1), (2**64 - 1, 1), (2**64 - 1, 2**32 - 1), (10**18, 3)]
    cases += [
        (random_numbers.getrandbits(64), random_numbers.getrandbits(bits) or 1)
        for bits in range(1, 33)
    ]
    code = tmp_path / "divide.c"
    calls = "".join(
        f"rest = 0; quotient = divided({number}ull, {by}u, &rest); print(quotient, rest);"
        for number, by in cases
    )
    code.write_text(
        f"{c_sources()['darwin']}\nint printf(const char *, ...);\n"
        'static void print(u64 a, u64 b) { printf("%llu %llu\\n", a, b); }\n'
        f"int main(void) {{ u64 quotient, rest; {calls} return 0; }}\n"
        "int task_threads(u32 a, u32 **b, u32 *c) { return 1; }\n"
        "int thread_info(u32 a, u32 b, void *c, u32 *d) { return 1; }\n"
        "int thread_suspend(u32 a) { return 1; }\nint thread_resume(u32 a) { return 1; }\n"
        "int thread_get_state(u32 a, int b, void *c, u32 *d) { return 1; }\n"
        "int mach_vm_read_overwrite(u32 a, u64 b, u64 c, u64 d, u64 *e) { return 1; }\n"
        "int mach_vm_region(u32 a, u64 *b, u64 *c, int d, void *e, u32 *f, u32 *g) { return 1; }\n"
        "int mach_port_deallocate(u32 a, u32 b) { return 1; }\n"
        "int mach_vm_deallocate(u32 a, u64 b, u64 c) { return 1; }\n"
        "u64 mach_absolute_time(void) { return 0; }\n"
        "int mach_timebase_info(void *a) { return 1; }\nu32 mach_task_self_;\n"
    )
    subprocess.run(["gcc", "-w", code, "-o", tmp_path / "divide"], check=True)
    shown = subprocess.run([tmp_path / "divide"], capture_output=True, text=True, check=True).stdout
    assert [tuple(map(int, line.split())) for line in shown.splitlines()] == [
        divmod(number, by) for number, by in cases
    ]
