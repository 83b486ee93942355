"""Lines of ``+[NSThread callStackSymbols]`` and of ``backtrace_symbols``.

Sources: apple-oss-distributions/Libc ``gen/backtrace.c`` for Apple's, glibc's manual (*Backtraces*)
for the other.
"""
