"""Texts of spindump, and of what the system writes of resources used up.

Hangs, spins, CPU usage, wakeups and disk writes: all have labels, the heaviest stack, and then a
block for each process with its threads' trees and its images. Source: texts of macOS 10.9 to 26
and of iOS 11 to 26, report versions 18 to 72.
"""
