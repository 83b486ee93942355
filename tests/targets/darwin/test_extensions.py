"""The extensions for macOS, compiled and linked against the system's exports."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from machtrace.model.arch import Arch
from tests.support.compilers.darwin import build_extensions, imported_symbols, system_symbols

PROJECT = Path(__file__).parents[3]
FROM_TOOLS = frozenset({"dyld_stub_binder", "___cpu_model"})
"""Symbols that the linker requires of dyld, or that are in the library of Apple's own compiler
(``libclang_rt.osx.a``) for ``__builtin_cpu_supports``."""
OF_THE_KERNEL = ("_task_", "_thread_", "_vm_", "_mach_", "_csops", "_csr_", "_proc_")

pytestmark = pytest.mark.skipif(
    sys.platform == "darwin", reason="a Mac builds its extensions with its own compiler"
)


@pytest.fixture(scope="module", params=[Arch.ARM64, Arch.X86_64], ids=lambda arch: arch.value)
def arch(request: pytest.FixtureRequest) -> Arch:
    """The architecture of the build."""
    return request.param


@pytest.fixture(scope="module")
def extensions(arch: Arch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build every extension that CMakeLists.txt has for Darwin."""
    pytest.importorskip("ziglang", reason="ziglang carries Apple's headers")
    folder = tmp_path_factory.mktemp("darwin")
    try:
        return build_extensions(PROJECT, folder, arch)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stdout)


@pytest.mark.peer
def test_macos_has_every_extension_but_those_of_ptrace(extensions: dict[str, Path]) -> None:
    """And the one of Mach tasks, which no other system has."""
    assert set(extensions) == {
        "_mapping",
        "_names",
        "_ranges",
        "_stack_tree",
        "_inprocess",
        "_darwin_task",
        "_walk",
    }


@pytest.mark.peer
def test_all_imported_functions_are_exported_by_macos_or_python(
    extensions: dict[str, Path], arch: Arch
) -> None:
    """Imports are bound when an extension is loaded: this test detects a misspelt one earlier."""
    exported = system_symbols(arch) | FROM_TOOLS
    for name, path in extensions.items():
        others = imported_symbols(path) - exported
        missing = {
            other for other in others if not hasattr(ctypes.pythonapi, other.removeprefix("_"))
        }
        assert not missing, name


def test_a_misspelt_function_is_not_in_the_systems_list(arch: Arch) -> None:
    """The list is complete enough: an empty one would have failed the test above."""
    exported = system_symbols(arch)
    assert {"_task_read_for_pid", "_thread_get_state", "_malloc", "_csops"} <= exported
    assert "_task_read_for_pit" not in exported


@pytest.mark.peer
def test_the_task_extension_imports_only_documented_kernel_calls(
    extensions: dict[str, Path],
) -> None:
    """Nothing that writes memory or registers, starts threads, or runs code elsewhere."""
    calls = {
        symbol
        for symbol in imported_symbols(extensions["_darwin_task"])
        if symbol.startswith(OF_THE_KERNEL)
    }
    assert calls == {
        *("_task_for_pid", "_task_read_for_pid", "_task_name_for_pid", "_mach_task_self_"),
        *("_task_info", "_task_threads", "_task_suspend2", "_task_resume2"),
        *("_thread_info", "_thread_get_state", "_thread_suspend", "_thread_resume"),
        *("_vm_read_overwrite", "_vm_region_recurse_64", "_vm_deallocate"),
        *("_mach_port_deallocate", "_mach_port_mod_refs"),
        *("_mach_absolute_time", "_mach_timebase_info"),
        *("_proc_pidinfo", "_proc_pidpath", "_csops", "_csr_get_active_config"),
    }
