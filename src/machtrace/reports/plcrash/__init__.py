"""PLCrashReporter's reports: seven letters, a version, and one protobuf message.

Source: PLCrashReporter, ``Resources/crash_report.proto`` and ``PLCrashReportTextFormatter.m``.
Strings are read as bytes, since some reports have strings that are not UTF-8.
"""
