"""machtrace.h: each function is documented, and docs/agent.md's snippets compile against it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.agent.build import PROJECT

HEADER = (PROJECT / "agent" / "include" / "machtrace.h").read_text()
PAGE = (PROJECT / "docs" / "agent.md").read_text()
INCLUDE = PROJECT / "agent" / "include"
_COMMENT = re.compile(
    r"/\*!\n(?P<text>(?: \*[^/\n]*(?:/[^\n]*)?\n)*?) \*/\n(?P<code>[^/]*?)(?=\n\n|\Z)"
)
_DECLARATION = re.compile(
    r"MACHTRACE_EXPORT\s+(?P<result>[\w\s\*]+?)\b(?P<name>machtrace_\w+)\((?P<parameters>[^)]*)\)",
    re.DOTALL,
)


def documented() -> dict[str, tuple[str, str, list[str]]]:
    """Return comment, result type and parameter names of each function, by name."""
    functions = {}
    for comment in _COMMENT.finditer(HEADER):
        declaration = _DECLARATION.search(comment["code"])
        if declaration is None:
            continue
        parts = [part.strip() for part in declaration["parameters"].split(",")]
        names = [re.split(r"[\s\*]+", part)[-1] for part in parts if part != "void"]
        functions[declaration["name"]] = comment["text"], declaration["result"].strip(), names
    return functions


FUNCTIONS = documented()


def test_every_exported_function_has_a_comment() -> None:
    exported = {match["name"] for match in _DECLARATION.finditer(HEADER)}
    assert exported == FUNCTIONS.keys()
    assert len(exported) >= 9


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_comment_names_the_function_its_parameters_and_its_result(name: str) -> None:
    text, result, parameters = FUNCTIONS[name]
    assert f"@function {name}\n" in text
    described = re.findall(r"@param (\w+)\n \* \S", text)
    assert described == parameters
    assert ("@result" in text) == (result != "void")


def snippets(language: str) -> list[str]:
    """Return the page's code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.peer
def test_snippets_in_c_compile(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    blocks = snippets("c")
    assert blocks
    for block in blocks:
        lines = block.splitlines()
        top = [line for line in lines if line.startswith("#include")]
        body = [line for line in lines if not line.startswith("#include")]
        source = tmp_path / "snippet.c"
        head = '#include "machtrace.h"\n'
        source.write_text("\n".join([head, *top, "int snippet(void) {", *body, "return 0; }", ""]))
        command = [compiler, "-std=c11", "-fsyntax-only", "-Wall", "-Wno-unused-variable"]
        command.append("-Wno-unused-but-set-variable")
        done = subprocess.run(
            [*command, f"-I{INCLUDE}", str(source)], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"


def zig(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run zig's compiler for macOS."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-macos"]
    return subprocess.run([*command, *arguments], check=False, capture_output=True, text=True)


@pytest.mark.peer
def test_snippets_in_objective_c_compile(tmp_path: Path) -> None:
    """Against the declarations of Foundation that they use: Apple's framework is not here."""
    blocks = snippets("objc")
    assert blocks
    foundation = tmp_path / "Foundation"
    foundation.mkdir()
    (foundation / "Foundation.h").write_text(FOUNDATION)
    for block in blocks:
        source = tmp_path / "snippet.m"
        source.write_text(block)
        include = [f"-I{tmp_path}", f"-I{INCLUDE}"]
        done = zig("-c", "-fno-modules", *include, str(source), "-o", str(tmp_path / "snippet.o"))
        assert done.returncode == 0, f"{block}\n{done.stderr}"


def test_the_names_of_swift_snippets_are_the_headers() -> None:
    """No Swift compiler is here: Swift imports functions, constants and structures by C's names."""
    blocks = snippets("swift")
    assert blocks
    for block in blocks:
        assert "import Machtrace" in block
        used = set(re.findall(r"\b(?:machtrace_\w+|MACHTRACE_\w+)\b", block))
        assert used
        assert all(re.search(rf"\b{name}\b", HEADER) for name in used), used
        for name, arguments in re.findall(r"\b(machtrace_\w+)\(((?:[^()]|\([^()]*\))*)\)", block):
            if name in FUNCTIONS:
                given = [part for part in arguments.split(",") if part.strip()]
                assert len(given) == len(FUNCTIONS[name][2]), name


FOUNDATION = """
#include <stdbool.h>
#include <stddef.h>
#define nil ((id)0)
typedef signed char BOOL;
typedef unsigned long NSUInteger;
__attribute__((objc_root_class)) @interface NSObject
+ (instancetype)alloc;
- (instancetype)init;
@end
@interface NSString : NSObject
+ (instancetype)stringWithUTF8String:(const char *)text;
- (NSString *)stringByAppendingPathComponent:(NSString *)name;
@property (readonly) const char *fileSystemRepresentation;
@property (readonly) const char *UTF8String;
@end
@interface NSConstantString : NSString
@end
NSString *NSTemporaryDirectory(void);
typedef long NSInteger;
@class NSData, NSError, NSURLResponse;
@interface NSString (Formats)
+ (instancetype)stringWithFormat:(NSString *)format, ...;
@end
@interface NSUUID : NSObject
@property (class, readonly) NSUUID *UUID;
+ (instancetype)UUID;
@property (readonly) NSString *UUIDString;
@end
@interface NSURL : NSObject
+ (NSURL *)fileURLWithPath:(NSString *)path;
+ (instancetype)URLWithString:(NSString *)text;
@property (readonly) const char *fileSystemRepresentation;
@end
@interface NSURLRequest : NSObject
+ (instancetype)requestWithURL:(NSURL *)url;
@end
@interface NSMutableURLRequest : NSURLRequest
@property (copy) NSString *HTTPMethod;
- (void)setValue:(NSString *)value forHTTPHeaderField:(NSString *)field;
@end
@interface NSHTTPURLResponse : NSObject
@property (readonly) NSInteger statusCode;
@end
@interface NSURLSessionUploadTask : NSObject
- (void)resume;
@end
typedef void (^Completion)(NSData *data, NSURLResponse *response, NSError *error);
@interface NSURLSession : NSObject
@property (class, readonly) NSURLSession *sharedSession;
- (NSURLSessionUploadTask *)uploadTaskWithRequest:(NSURLRequest *)request
                                         fromFile:(NSURL *)file
                                completionHandler:(Completion)handler;
@end
void NSLog(NSString *format, ...);
"""
