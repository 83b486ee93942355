"""The command machtrace image: what a program or library file holds."""
