"""A small app with an SDK, compiled for iOS, whose calls and declarations are known."""

import plistlib
import shutil
from pathlib import Path

PREFIX = "NSPrivacyAccessedAPICategory"
LLD = (
    "-adhoc_codesign",
    "-platform_version",
    "ios",
    "15.0",
    "16.5",
    "-undefined",
    "dynamic_lookup",
)
SDK = """
extern int stat(const char *, void *);
int sdk_size(const char *path) { char buffer[256]; return stat(path, buffer) + buffer[1]; }
"""
MAIN = """
extern unsigned long long mach_absolute_time(void);
extern int ABAddressBookCopyArrayOfAllPeople(void *);
int main(void) { return (int)mach_absolute_time() + ABAddressBookCopyArrayOfAllPeople(0); }
"""
LATER = """
extern unsigned long long mach_absolute_time(void);
extern int statfs(const char *, void *);
__attribute__((noinline)) int again(void) { return (int)mach_absolute_time(); }
int free_space(void) { char buffer[4096]; return statfs("/", buffer) + buffer[9]; }
int main(void) { return again() + (int)mach_absolute_time(); }
"""
"""The next build: one finding is gone, one has a further call, one is new."""


def declaring(*categories, **root):
    """Return a manifest with a reason for each category."""
    reasons = {"FileTimestamp": "C617.1", "SystemBootTime": "35F9.1", "DiskSpace": "E174.1"}
    return plistlib.dumps(
        {
            "NSPrivacyAccessedAPITypes": [
                {
                    "NSPrivacyAccessedAPIType": f"{PREFIX}{category}",
                    "NSPrivacyAccessedAPITypeReasons": [reasons[category]],
                }
                for category in categories
            ],
            **root,
        }
    )


def build_images(zig, llvm, folder):
    """Compile the images of the app, of its next build, and of its SDK into ``folder``."""
    sources = (("App", MAIN, "-execute"), ("Later", LATER, "-execute"), ("Lottie", SDK, "-dylib"))
    for name, source, kind in sources:
        unit = zig(f"{name}.o", source, "arm64-apple-ios15.0", "-c", "-w")
        llvm("ld64.lld", "-arch", "arm64", *LLD, kind, "-o", folder / name, unit)
    return folder


def assemble(images: Path, root: Path, main: str = "App") -> Path:
    """Make an app of the images at ``root``; nothing is declared."""
    framework = root / "Frameworks" / "Lottie.framework"
    framework.mkdir(parents=True)
    shutil.copy(images / main, root / "Demo")
    shutil.copy(images / "Lottie", framework / "Lottie")
    (root / "Info.plist").write_bytes(plistlib.dumps({"CFBundleIdentifier": "org.example.demo"}))
    (framework / "Info.plist").write_bytes(plistlib.dumps({"CFBundleIdentifier": "lottie"}))
    return root
