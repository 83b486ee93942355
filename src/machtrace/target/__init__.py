"""Where stacks come from: a live process, a core, an emulator. All process I/O is here."""
