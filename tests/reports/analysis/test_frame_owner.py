"""The owner of a frame's code, by the paths of images."""

import pytest

from machtrace.reports.analysis.frame_owner import FrameOwner, OwnerReason, Owners, bundle_of

IOS = "/private/var/containers/Bundle/Application/1/Demo.app/Demo"
MAC = "/Applications/Demo.app/Contents/MacOS/Demo"


@pytest.mark.parametrize(
    ("program", "path", "owner", "reason"),
    [
        (IOS, IOS, FrameOwner.APP, OwnerReason.PROGRAM),
        (IOS, IOS.removeprefix("/private"), FrameOwner.APP, OwnerReason.PROGRAM),
        (IOS, f"{IOS[:-5]}/Frameworks/Kit.framework/Kit", FrameOwner.APP, OwnerReason.BUNDLE),
        (
            IOS,
            f"{IOS[:-5]}/Frameworks/libswiftCore.dylib",
            FrameOwner.SYSTEM,
            OwnerReason.SWIFT_RUNTIME,
        ),
        (IOS, "/usr/lib/libobjc.A.dylib", FrameOwner.SYSTEM, OwnerReason.SYSTEM_PATH),
        (
            IOS,
            "/Library/Developer/CoreSimulator/x/RuntimeRoot/usr/lib/a.dylib",
            FrameOwner.SYSTEM,
            OwnerReason.SYSTEM_PATH,
        ),
        (MAC, "/Applications/Demo.app/Contents/Frameworks/K", FrameOwner.APP, OwnerReason.BUNDLE),
        (MAC, "/Applications/Demo.apple/K", FrameOwner.UNKNOWN, OwnerReason.ELSEWHERE),
        ("/opt/demo/demo", "/opt/demo/lib/k.dylib", FrameOwner.APP, OwnerReason.BESIDE),
        ("/usr/lib/demo", "/usr/lib/other", FrameOwner.SYSTEM, OwnerReason.SYSTEM_PATH),
        (
            "/System/Applications/Mail.app/Contents/MacOS/Mail",
            "/System/Applications/Mail.app/Contents/Frameworks/K",
            FrameOwner.APP,
            OwnerReason.BUNDLE,
        ),
        (IOS, "UIKitCore", FrameOwner.UNKNOWN, OwnerReason.NO_PATH),
        ("", "Demo", FrameOwner.UNKNOWN, OwnerReason.NO_PATH),
    ],
)
def test_an_image_s_owner(program, path, owner, reason):
    ownership = Owners(program).owner(path)
    assert (owner, reason) == (ownership.owner, ownership.reason)


def test_without_paths_the_program_is_known_by_its_name():
    """MetricKit's payloads and lines of callStackSymbols have no paths."""
    assert FrameOwner.APP is Owners("", "Demo").owner("", "Demo").owner
    assert FrameOwner.UNKNOWN is Owners("", "Demo").owner("", "UIKitCore").owner


def test_the_outermost_bundle():
    """An extension's is that of the app that it comes with."""
    assert bundle_of("/a/X.app/PlugIns/Y.appex/Y") == "/a/X.app"
    assert bundle_of("/usr/bin/true") == ""
