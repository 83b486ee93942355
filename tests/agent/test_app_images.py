"""Which images are the app's: by their paths, on each system."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.build import build, run

pytestmark = pytest.mark.live
PHONE = "/private/var/containers/Bundle/Application/0F3A"
CASES = {
    "phone": [
        (f"{PHONE}/Shop.app/Shop", True),
        (f"{PHONE}/Shop.app/Frameworks/Maps.framework/Maps", True),
        ("/System/Library/Frameworks/UIKit.framework/UIKit", False),
        ("/usr/lib/swift/libswiftCore.dylib", False),
    ],
    "extension": [
        (f"{PHONE}/Shop.app/PlugIns/Share.appex/Share", True),
        (f"{PHONE}/Shop.app/Frameworks/Maps.framework/Maps", True),
        ("/Developer/usr/lib/libBacktraceRecording.dylib", False),
    ],
    "mac": [
        ("/Applications/Notes.app/Contents/MacOS/Notes", True),
        ("/Applications/Notes.app/Contents/Frameworks/A.framework/A", True),
        ("/usr/lib/libobjc.A.dylib", False),
    ],
    "app of the system": [
        ("/System/Applications/Clock.app/Contents/MacOS/Clock", True),
        ("/System/Applications/Clock.app/Contents/Frameworks/A.framework/A", True),
        ("/System/Applications/Clock.apparatus/A", False),
        ("/System/Library/Frameworks/AppKit.framework/AppKit", False),
    ],
    "simulator": [
        ("/Users/a/Containers/Bundle/Application/0F3A/Shop.app/Shop", True),
        ("/Users/a/Containers/Bundle/Application/0F3A/Shop.app/Frameworks/A", True),
        ("/Volumes/iOS/RuntimeRoot/System/Library/Frameworks/UIKit", False),
    ],
    "folder of the system": [
        ("/usr/lib/browser/browser", True),
        ("/usr/lib/browser/libengine.so", True),
        ("/usr/lib/libc.so.6", False),
        ("/lib64/ld-linux-x86-64.so.2", False),
    ],
    "beside the loader": [
        ("/usr/lib/x86_64-linux-gnu/program", True),
        ("/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", False),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", False),
        ("/opt/sdk/libsdk.so", True),
    ],
    "no path": [("", True), ("/home/a/libsdk.so", True), ("linux-vdso.so.1", False)],
}


@pytest.mark.parametrize("name", CASES)
def test_the_images_of_the_app_are_those_beside_its_program(built: Path, name: str) -> None:
    program = build(built, "app_images.c", ("agent/app_images.c",))
    paths, are_its = zip(*CASES[name], strict=True)
    assert run(program, *paths).strip() == "".join(str(int(is_its)) for is_its in are_its)


def test_as_many_images_as_the_agent_knows_have_their_frames(built: Path) -> None:
    program = build(built, "app_images.c", ("agent/app_images.c",))
    text = run(program, "/home/a/app", "/usr/lib/libc.so.6", "=/home/a/libpart.so").strip()
    assert text == "10" + "1" * 8190
