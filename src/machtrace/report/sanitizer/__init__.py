"""What sanitizers print (of addresses, threads, memory, undefined behaviour), and LLVM's own dumps.

Sources: *SanitizerCommonFlags* of compiler-rt (``stack_trace_format``), ``asan_symbolize.py``, and
of LLVM ``lib/Support/Signals.cpp``; what programs built by GCC 12 and clang 19 print.
"""
