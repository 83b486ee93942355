"""Stacks that a published method confuses, and the agent does not: see tests/agent/article.py."""

from __future__ import annotations

import subprocess
from ctypes import CDLL, c_uint64
from pathlib import Path

import pytest

from machtrace.model.arch import Arch
from tests.agent import article, darwin_lab, spool_format
from tests.agent.build import PROJECT, build, compiler, library
from tests.agent.spool_format import Nodes
from tests.agent.test_hooks import shared

pytestmark = pytest.mark.live

ORDERS = ("aab", "aba", "baa")
CANCELLING = ("", "aa", "aaaa", "bb", "abab")
DEEP = tuple(first + 40 * "a" for first in ("b", "ab", "bb"))


def origins(built: Path, spool: Path, *paths: str) -> list[tuple[int, list[int]]]:
    """Return each path's identity of its stack, and its return addresses, innermost first."""
    link = [str(library(built)), str(shared(built, "observed")), f"-Wl,-rpath,{built}"]
    program = build(built, "origins.c", (), link=link)
    command = [str(program), str(spool), *paths]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [line.split() for line in lines]
    return [(int(row[0]), [int(word, 16) for word in row[1:]]) for row in rows]


def stacks_of(spool: Path) -> list[tuple[tuple[bytes, int], ...]]:
    """Return the stack of each event: identifiers of images and offsets in them."""
    read = spool_format.read(spool)
    nodes, result = Nodes(read), []
    for event in read.events:
        frames, node = [], event.stack
        while node:
            image, offset = nodes.frames[node]
            frames.append((nodes.images[image].identifier if image else b"", offset))
            node = nodes.parents[node]
        result.append(tuple(frames))
    return result


@pytest.mark.parametrize("paths", [ORDERS, CANCELLING], ids=["orders", "recursion"])
def test_orders_and_recursion_differ(built: Path, tmp_path: Path, paths: tuple[str, ...]) -> None:
    seen = origins(built, tmp_path / "app.spool", *paths)
    assert len({article.key(frames) for _, frames in seen}) == 1
    assert len({identity for identity, _ in seen}) == len(paths)
    assert len(set(stacks_of(tmp_path / "app.spool"))) == len(paths)


def test_stacks_with_equal_tops_differ(built: Path, tmp_path: Path) -> None:
    seen = origins(built, tmp_path / "app.spool", *DEEP)
    assert len({article.key(frames, most=32) for _, frames in seen}) == 1
    assert len({identity for identity, _ in seen}) == len(DEEP)


def test_stacks_of_two_launches_are_equal(built: Path, tmp_path: Path) -> None:
    """The agent's frames are images and offsets; the method's key has this launch's addresses."""
    launches = []
    for launch in range(2):
        spool = tmp_path / f"{launch}.spool"
        origins(built, spool, "ab", "b")
        launches.append(stacks_of(spool))
    assert launches[0] == launches[1]
    stack = [offset for _, offset in launches[0][1]]
    slides = 0x1_0000_0000, 0x1_0004_0000
    keys = {article.key([slide + offset for offset in stack[:3]]) for slide in slides}
    assert len(keys) == 2


def test_calls_of_one_task_differ(tmp_path: Path) -> None:
    """In the emulated process: three stacks of one task of Swift."""
    lab = darwin_lab.build_lab(tmp_path / "images", Arch.ARM64)
    result = darwin_lab.run(lab, tmp_path / "app.spool", "tasks", "sdk_read", "sdk_write")
    true = [seen.stack for seen in result.seen]
    assert len({article.key(stack, task=7) for stack in true}) == 1
    assert len({seen.event.stack for seen in result.seen}) == len(set(true)) == 4


def test_addresses_above_36_bits_differ(built: Path) -> None:
    """Inserted into the agent's tree, as any program's addresses are."""
    output = built / "stack_tree.so"
    options = ["-O2", "-std=c11", "-fPIC", "-shared", f"-I{PROJECT / 'agent'}"]
    source = str(PROJECT / "agent/stack_tree.c")
    subprocess.run([compiler(), *options, source, "-o", str(output)], check=True)
    functions, tree = CDLL(str(output)), (c_uint64 * 8)()
    assert functions.machtrace_stack_tree_begin(tree, 10) == 0
    addresses = [0x7F32_0000_1000 + (high << 36) for high in range(16)]
    assert len({article.without_signature(address) for address in addresses}) == 1
    insert = functions.machtrace_stack_tree_insert
    nodes = {insert(tree, 0, c_uint64(address)) for address in addresses}
    functions.machtrace_stack_tree_end(tree)
    assert len(nodes - {0}) == len(addresses)


def test_the_first_address_behind_an_image_is_not_of_it(built: Path, tmp_path: Path) -> None:
    """And images are known by their identifiers, not by where their files are."""
    origins(built, tmp_path / "app.spool", "ab")
    read = spool_format.read(tmp_path / "app.spool")
    nodes = Nodes(read)
    assert nodes.images
    for image in nodes.images.values():
        text = article.Text(image.path, image.start, image.size)
        assert text.has(image.start + image.size)
        assert not text.is_of_the_app
    for image, offset in nodes.frames.values():
        assert image == 0 or offset < nodes.images[image].size
