"""Programs, libraries and Darwin's kernel in an emulator."""
