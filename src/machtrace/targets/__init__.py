"""Process access: live processes, cores, emulators, remote stubs and devices."""
