"""Functions of published binaries, run in an emulator from random states, with the true stack.

``harness.run_image(contents, arch, seed, count, ...)`` executes ``count`` runs of one image and
returns a :class:`~tests.support.published.results.Result`::

    run_image(
        contents: bytes | memoryview | Path,  # a Mach-O (thin or fat) or an ELF file
        arch: Arch | None,                    # the slice of a fat file; None: the first known one
        seed: int,
        count: int,
        *,
        first: int = 0,                       # the number of the first run
        name: str = "",                       # the file's name, which is part of the seed
        samples: int = 0,                     # compared moments to return, evenly spread
        advance: Callable[[int], object] | None = None,  # called with finished runs
    ) -> Result

A run's number and seed determine it: ``run_image(..., first=number, count=1)`` repeats it alone.
``Result`` has ``runs``, ``compared``, ``exact``, ``dropped`` and ``ended`` (counts by reason),
``wrong`` (a ``Mismatch`` for each compared stack that was not exact), ``wrong_registers``,
``lost_registers`` and ``samples``; ``to_json()`` and ``+`` combine the results of processes. A
``Sample`` has the run's number, ``registers`` (a ``RegisterSet``), ``stack`` (a ``MemoryRegion``
from below the stack pointer to the end of the stack), ``truth`` (pc and return addresses, innermost
first, the last one :data:`~tests.support.published.machine.OUTSIDE`) and ``slide`` (the emulated
less the stated address of the image), so that a debugger can be shown the same moment.

The modules, in the order of their layers: ``image`` (with ``macho`` and ``elf``) loads a file;
``instructions`` classifies instructions; ``functions`` knows callees that do not return,
``entries`` selects functions to call, ``jump_tables`` checks jumps; ``machine`` is the emulator,
whose memory is mapped on demand; ``true_calls`` records the calls in progress and watches what they
saved; ``execution`` runs a function; ``callers`` creates the stack that it is called on;
``comparison`` walks a moment and compares it; ``harness`` does all that for many runs, in
processes of a pool, too; ``results`` counts and stores them; ``listing`` prints one. ``files``
reads the table of published files, ``fetch`` fetches them, ``peers`` shows moments to debuggers,
and ``report`` writes the page.
"""
