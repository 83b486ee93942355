"""Runtime metadata of Objective-C, Swift and C++ in a Mach-O image."""
