"""Programs for four machines whose chains of calls are known, and trails as a hook records them.

Return addresses are those after the n-th call of a function in llvm-objdump's listing.
"""

import re
import subprocess
import sys
from itertools import pairwise

from machtrace.audit.trail.app_code import read_app_code
from machtrace.audit.trail.attribution import attribute
from machtrace.audit.trail.calls import Image, ImageRole, Process, Trail, calls_of
from machtrace.audit.trail.libraries import CodeMap
from machtrace.audit.trail.stacks import tree_of

COMMON = """
#define WHOLE __attribute__((noinline, used))
#define FENCE __asm__ volatile("" ::: "memory")
extern int stat(const char *, void *);
extern int fstat(int, void *);
"""
SDK = (
    COMMON
    + """
WHOLE int NAME_direct(const char *p, char *b) { int r = stat(p, b); FENCE; return r + b[1]; }
WHOLE int NAME_tail(const char *p, char *b) { return stat(p, b); }
WHOLE int NAME_last(const char *p, char *b) { FENCE; return stat(p + 1, b); }
WHOLE int NAME_chain(const char *p, char *b) { FENCE; return NAME_last(p + 2, b); }
WHOLE int NAME_maybe(const char *p, char *b) { return p ? NAME_chain(p, b) : 0; }
WHOLE int NAME_both(int f, char *b) { int r = fstat(f, b); FENCE; return r + stat("", b); }
extern int OTHER_tail(const char *, char *);
WHOLE int NAME_via(const char *p, char *b) { int r = OTHER_tail(p, b); FENCE; return r; }
"""
)
MAIN = (
    COMMON
    + """
#define DECLARE(name) int alpha_##name(const char *, char *), beta_##name(const char *, char *);
DECLARE(direct) DECLARE(tail) DECLARE(chain) DECLARE(maybe) DECLARE(via)
int alpha_both(int, char *);
#define CALL(name, what) WHOLE int name(const char *p, char *b) { int r = what; FENCE; return r; }
CALL(app_direct, alpha_direct(p, b))
CALL(app_tail, alpha_tail(p, b))
CALL(app_chain, beta_chain(p, b))
CALL(app_maybe, alpha_maybe(p, b))
CALL(app_via, alpha_via(p, b))
CALL(app_own, stat(p, b))
CALL(app_both, alpha_both(3, b))
int (*const app_table[2])(const char *, char *) = {beta_tail, alpha_tail};
WHOLE int app_pointer(const char *p, char *b, unsigned long n)
{
    int r = app_table[n](p, b);
    FENCE;
    return r;
}
"""
)
VENEER = {
    True: ("_far_stat", "_stat@GOTPAGE", "_stat@GOTPAGEOFF"),
    False: ("far_stat", ":got:stat", ":got_lo12:stat"),
}
"""By whether the machine is Darwin's: a veneer as linkers place between far code, in the app's."""
FAR = """
int far_stat(const char *, char *);
WHOLE int NAME_far(const char *p, char *b) { FENCE; return far_stat(p, b); }
"""
OBJC = """
@interface Alpha
- (int)alphaSize:(char *)b;
@end
@implementation Alpha
- (int)alphaSize:(char *)b { return stat("/", b); }
@end
CALL(app_message, [(Alpha *)p alphaSize:b])
"""
CHAINS = {
    # The functions that have frames, outermost first, with the number of the call that is active;
    # then the asker and the owner.
    "direct": ([("app_direct", 0), ("alpha_direct", 0)], "stat", "alpha", "alpha"),
    "tail": ([("app_tail", 0)], "stat", "alpha", "alpha"),
    "chain": ([("app_chain", 0)], "stat", "beta", "beta"),
    "conditional": ([("app_maybe", 0)], "stat", "alpha", "alpha"),
    "through the other": ([("app_via", 0), ("alpha_via", 0)], "stat", "beta", "alpha"),
    "own": ([("app_own", 0)], "stat", "App", "App"),
    "fstat before stat": ([("app_both", 0), ("alpha_both", 0)], "fstat", "alpha", "alpha"),
    "stat after fstat": ([("app_both", 0), ("alpha_both", 1)], "stat", "alpha", "alpha"),
    "a table of both": ([("app_pointer", 0)], "stat", "?", "?"),
}
NO_WAY = {"no jump leads there": ([("app_both", 0)], "stat", "?", "?")}
VENEERS = {"veneer": ([("app_far", 0)], "stat", "alpha", "alpha")}
MESSAGE = {"message": ([("app_message", 0)], "stat", "alpha", "alpha")}
_FUNCTION = re.compile(r"([0-9a-f]+) <_?([-+\w\[\] :]+)>:$")
_INSTRUCTION = re.compile(r" *([0-9a-f]+):\s+(?:addr32\s+|data16\s+|notrack\s+)*(\S+)")
_CALLS = re.compile(r"bl|blr|callq?")


class Program:
    """The program for one machine, stripped, with its map."""

    def __init__(self, folder, target, llvm, *flags):
        self.folder, self._llvm = folder, llvm
        self.is_darwin = "apple" in target
        self.is_arm64 = target.startswith(("arm64", "aarch64"))
        objects = []
        for name, other in (("alpha", "beta"), ("beta", "alpha")):
            place = folder / "Pods" / name
            place.mkdir(parents=True)
            source = (
                (SDK + (FAR if self.is_arm64 else "")).replace("NAME", name).replace("OTHER", other)
            )
            objects.append(self._compile(place, name, source, target, flags))
        main = MAIN
        if self.is_arm64:
            name, page, low = VENEER[self.is_darwin]
            hidden = ".private_extern" if self.is_darwin else ".hidden"
            code = f".text; .p2align 2; .globl {name}; {hidden} {name}; {name}:; adrp x16, {page};"
            code += f" ldr x16, [x16, {low}]; br x16"
            main += "".join(f'__asm__("{line.strip()}");' for line in code.split("; "))
            main += "int alpha_far(const char *, char *); CALL(app_far, alpha_far(p, b))"
        if self.is_darwin:
            # The class is alpha's: its implementation is compiled there.
            implementation = OBJC[: OBJC.index("CALL(")]
            place = folder / "Pods" / "alpha"
            source = COMMON + implementation
            objects.append(self._compile(place, "methods", source, target, flags, "m"))
            declared = OBJC[: OBJC.index("@implementation")]
            main += declared + OBJC[OBJC.index("CALL(") :]
        suffix = "m" if self.is_darwin else "c"
        objects.append(self._compile(folder, "main", main, target, flags, suffix))
        self._link(target, objects)
        self.returns = self._returns()

    def _compile(self, folder, name, source, target, flags, suffix="c"):
        (folder / f"{name}.{suffix}").write_text(source)
        words = ["-target", target, "-O2", "-fPIC", "-fvisibility=hidden", "-w", *flags]
        words += ["-fno-omit-frame-pointer", "-fno-objc-arc"] if suffix == "m" else []
        compiler = [sys.executable, "-m", "ziglang", "clang", *words]
        unit = folder / f"{name}.o"
        subprocess.run([*compiler, "-c", folder / f"{name}.{suffix}", "-o", unit], check=True)
        return unit

    def _link(self, target, objects):
        self.path, self.link_map = self.folder / "App", self.folder / "App.map"
        self.full = self.folder / "full" / "App"
        self.full.parent.mkdir()
        arch = target.partition("-")[0]
        if self.is_darwin:
            words = ["-arch", arch, "-platform_version", "macos", "13.0", "13.0", "-dylib"]
            words += ["-undefined", "dynamic_lookup", "-map", self.link_map, *objects]
            self._llvm("ld64.lld", *words, "-o", self.full)
            self._llvm("llvm-strip", "-x", self.full, "-o", self.path)
            return
        words = ["-shared", "--build-id=sha1", f"-Map={self.link_map}", "--eh-frame-hdr", *objects]
        linker = [sys.executable, "-m", "ziglang", "ld.lld", *words]
        subprocess.run([*linker, "-o", self.full], check=True)
        subprocess.run([*linker, "--strip-all", "-o", self.path], check=True)

    def _returns(self):
        """Return the addresses after each call, by function."""
        text = self._llvm("llvm-objdump", "-d", "--no-show-raw-insn", self.full)
        returns, name = {}, ""
        rows = [(line, _FUNCTION.match(line), _INSTRUCTION.match(line)) for line in
                text.splitlines()]  # fmt: skip
        rows = [row for row in rows if row[1] or row[2]]
        for (_, function, instruction), (_, _, following) in pairwise(rows):
            if function:
                name = function[2]
            elif instruction and following and _CALLS.fullmatch(instruction[2]):
                returns.setdefault(name, []).append(int(following[1], 16))
        return returns

    def identifier(self):
        """Return the UUID or the build id, by LLVM's tools."""
        if self.is_darwin:
            text = self._llvm("llvm-objdump", "--macho", "--private-headers", self.path)
            return re.search(r"uuid ([0-9A-F-]+)", text)[1].replace("-", "")
        text = self._llvm("llvm-readelf", "-n", self.path)
        return re.search(r"Build ID: ([0-9a-f]+)", text)[1]

    def trail(self, chains, **identity):
        """Return what a hook records of chains. Both linkers put these libraries at 0."""
        known = {"path": "/data/App", "uuid": self.identifier(), **identity}
        image = Image(**known, role=ImageRole.APP)
        stacks = [
            [(0, self.returns[name][number]) for name, number in reversed(frames)]
            for frames, *_ in chains
        ]
        tree, nodes = tree_of(stacks)
        rules = ("stat", "fstat")
        return Trail(
            images=(image,),
            stacks=tree,
            rules=rules,
            processes=(Process(run="one"),),
            calls=calls_of(
                stack=nodes,
                rule=[rules.index(watch) for _, watch, *_ in chains],
                time=range(len(chains)),
            ),
        )

    def answers(self, chains, rules, link_map, *, path=None, **identity):
        """Return the asker and the owner of each chain, and what was read."""
        trail = self.trail(chains, **identity)
        app = read_app_code(path or self.path, trail, rules, link_map=link_map)
        code = CodeMap(trail.images, app.libraries, ranges=app.ranges)
        result = attribute(trail, code, app.facts)
        rows = result.row_of_call.tolist()
        names = [
            (result.library_name(result.asker[row]), result.library_name(result.owner[row]))
            for row in rows
        ]
        return names, app, result, trail
