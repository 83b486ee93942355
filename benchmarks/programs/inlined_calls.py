"""A dSYM of some 60,000 functions and 400,000 inlined calls, from C++ that is generated here.

    python benchmarks/programs/inlined_calls.py FOLDER [--sources N] [--functions N]

writes ``FOLDER/calls.dylib`` (arm64, macOS 11) and ``FOLDER/calls.dylib.dSYM``. It needs clang,
ld64.lld and dsymutil of one version, as Debian's packages ``clang-19 lld-19 llvm-19`` bring them.
The same sources are written each time. In them templates, methods, constructors and lambdas of
three headers are inlined up to eight deep into functions with loops, switches and parts that are
seldom run; some functions are equal, and every tenth calls what never returns.
"""

from __future__ import annotations

import subprocess
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from shutil import which

SOURCES = 74
FUNCTIONS = 500
"""In each source."""
TOOLS = ("clang-19", "ld64.lld-19", "dsymutil-19")

_NUMBERS = """\
#pragma once
namespace numbers {
template <int N> struct Scale {
  long factor;
  explicit Scale(long by) : factor(by * N) {}
  long apply(long value) const {
    if (value > factor)
      return value - factor;
    return value * N + factor;
  }
};

template <typename T> inline T clamp(T value, T low, T high) {
  if (value < low)
    return low;
  return value > high ? high : value;
}

template <int N> inline long mix(long a, long b) {
  Scale<N> scale(b);
  long mixed = scale.apply(a);
  mixed ^= clamp<long>(b, N, 4096);
  return mixed;
}
}
"""
_LISTS = """\
#pragma once
#include "numbers.h"
namespace lists {
template <typename T, int N> class Ring {
  T items[N];
  int at = 0;

public:
  Ring() {
    for (int i = 0; i < N; ++i)
      items[i] = T();
  }
  void push(T item) {
    items[at] = item;
    at = next(at);
  }
  T sum() const {
    T total = T();
    for (int i = 0; i < N; ++i)
      total += numbers::mix<N>(items[i], i);
    return total;
  }

private:
  static int next(int i) { return i + 1 == N ? 0 : i + 1; }
};

template <typename Function> inline long fold(const long *values, int count, Function each) {
  long result = 0;
  for (int i = 0; i < count; ++i)
    result = each(result, values[i]);
  return result;
}
}
"""
_CHECKS = """\
#pragma once
#include "lists.h"
extern "C" [[noreturn]] void fail(const char *, long);
extern "C" long outside(long);
namespace checks {
inline void positive(long value) {
  if (__builtin_expect(value < 0, 0))
    fail("negative", value);
}
struct Guard {
  long &level;
  explicit Guard(long &of) : level(of) { ++level; positive(level); }
  ~Guard() { level = outside(level); }
};
template <int N> inline long guarded(long value) {
  long level = N;
  Guard guard(level);
  lists::Ring<long, 2 + N % 3> ring;
  ring.push(value);
  ring.push(numbers::mix<N>(value, level));
  return ring.sum();
}
}
"""
_BODIES = (
    """\
  total += checks::guarded<{n}>(a);
  if (total > b) {{
    total -= numbers::mix<{m}>(total, b);
  }}
""",
    """\
  total += lists::fold(v, {n}, [=](long x, long y) {{
    return numbers::clamp(x + y * {m}, a, b);
  }});
""",
    """\
  for (long i = a; i < b; i += {m})
    total ^= numbers::mix<{n}>(
        i, numbers::clamp<long>(total, {m}, b));
""",
    """\
  switch (a & 3) {{
  case 0: total += numbers::mix<{n}>(a, b); break;
  case 1: total += outside(numbers::mix<{m}>(b, a)); break;
  default: checks::positive(total);
  }}
""",
    """\
  numbers::Scale<{n}> scale(a);
  total = scale.apply(numbers::Scale<{m}>(b).apply(total));
""",
)


def write_sources(folder: Path, sources: int, functions: int) -> list[Path]:
    """Write the headers and ``sources`` files of ``functions`` functions each."""
    for name, text in (("numbers", _NUMBERS), ("lists", _LISTS), ("checks", _CHECKS)):
        (folder / f"{name}.h").write_text(text)
    return [_source(folder, number, functions) for number in range(sources)]


def _source(folder: Path, number: int, functions: int) -> Path:
    random = Random(number)  # noqa: S311 (the same each time)
    lines = ['#include "checks.h"\n', f"namespace part{number} {{\n"]
    for index in range(functions):
        static = "static __attribute__((noinline, used)) " if index % 4 == 0 else ""
        lines.append(f"{static}long function{index}(long a, long b, const long *v) {{\n")
        lines.append(f"  long total = a + {random.randrange(9)};\n")
        for _ in range(random.randrange(1, 3)):
            body = random.choice(_BODIES)
            body = body.format(n=random.randrange(1, 9), m=random.randrange(1, 9))
            lines += ["  {\n", body, "  }\n"]
        if index % 10 == 9:
            lines.append("  if (total == b)\n    fail(__func__, total);\n")
        lines.append("  return total;\n}\n\n")
    lines.append("}\n")
    path = folder / f"part{number}.cpp"
    path.write_text("".join(lines))
    return path


def build(folder: Path, sources: int = SOURCES, functions: int = FUNCTIONS) -> Path:
    """Compile, link, and gather the debug information.

    Returns:
        The library; its dSYM is beside it.

    Raises:
        FileNotFoundError: a tool is not installed.
        subprocess.CalledProcessError: a tool failed.
    """
    for tool in TOOLS:
        if which(tool) is None:
            raise FileNotFoundError(tool)
    clang, linker, dsymutil = TOOLS
    target = ("-target", "arm64-apple-macos11", "-std=c++17", "-nostdinc", "-fno-exceptions")

    def compiled(source: Path) -> Path:
        output = source.with_suffix(".o")
        flags = ("-O2", "-g", "-fno-rtti", "-c", str(source), "-o", str(output))
        subprocess.run([clang, *target, *flags], check=True)
        return output

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, write_sources(folder, sources, functions)))
    library = folder / "calls.dylib"
    system = ("-arch", "arm64", "-platform_version", "macos", "11.0", "11.0")
    link = (linker, *system, "-dylib", "-undefined", "dynamic_lookup", "-o", str(library))
    subprocess.run([*link, *map(str, objects)], check=True)
    subprocess.run([dsymutil, str(library)], check=True)
    return library


def main() -> None:
    """Build into the folder on the command line."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sources", type=int, default=SOURCES)
    parser.add_argument("--functions", type=int, default=FUNCTIONS)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print(build(given.folder, given.sources, given.functions))  # noqa: T201 (the result)


if __name__ == "__main__":
    main()
