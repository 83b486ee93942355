"""Published binaries: the calls found in them are those that llvm-objdump and llvm-nm find.

``make published-files`` fetches them.
"""

import shutil

import pytest

from machtrace.audit.rules import RuleKind, load_rules
from machtrace.audit.scan.app import open_images, scan_app
from tests.audit.objdump import function_calls, imported_names
from tests.support.published.files import FETCHED, published_files

FILES = [
    file
    for file in published_files()
    if file.name
    in {"canvas-ios", "canvas-simulator", "fbcontrolcore", "axe", "aperture", "pyobjc", "grpcio"}
]


def tool(name):
    program = shutil.which(f"{name}-19") or shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed; it is the peer here")
    return program


@pytest.mark.peer
@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.name}-{file.architectures[0]}")
def test_calls_of_functions_are_those_of_llvm_objdump(file):
    path = file.path(FETCHED)
    if not path.exists():
        pytest.skip("not fetched: make published-files")
    rules = load_rules()
    (image,) = scan_app(path, rules).images
    ((_, contents),) = open_images(path, [])
    base = contents.image.header_svma
    ours = {
        (site.offset + base, site.rule.watch)
        for site in image.scan.sites
        if site.rule.kind is RuleKind.C and site.is_call and site.evidence == "symbol"
    }
    assert ours == function_calls(tool("llvm-objdump"), path, image.scan.arch, rules)
    imported = imported_names(tool("llvm-nm"), path, image.scan.arch)
    watched = {rule.watch for name in imported if (rule := rules.of_symbol(name)) is not None}
    assert {name for name, ways in image.scan.names.items() if "imported" in ways} >= watched
