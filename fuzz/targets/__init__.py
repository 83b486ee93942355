"""The fuzz targets, one a part of the package."""

from __future__ import annotations

from fuzz.target import Target
from fuzz.targets import (
    apple_reports,
    audit,
    debug_files,
    demangle,
    eh_frame,
    fixups,
    gdb_remote,
    instructions,
    objc,
    pclntab,
    python_memory,
    reports,
    rtti,
    spool,
    swift,
    symbol_store,
    symbol_table,
    symcache,
    unwind_info,
    walker,
)

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        unwind_info.TARGET,
        eh_frame.TARGET,
        instructions.TARGET,
        walker.TARGET,
        swift.TARGET,
        symcache.TARGET,
        debug_files.TARGET,
        fixups.TARGET,
        objc.TARGET,
        audit.TARGET,
        demangle.TARGET,
        pclntab.TARGET,
        rtti.TARGET,
        gdb_remote.TARGET,
        python_memory.TARGET,
        reports.TARGET,
        spool.TARGET,
        apple_reports.IPS,
        apple_reports.CRASH,
        symbol_table.TARGET,
        symbol_store.TARGET,
    )
}
"""By name."""
