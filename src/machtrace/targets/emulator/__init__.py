"""A process inside an emulator, the target emulated:demo."""
