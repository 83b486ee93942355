"""Stand-ins for kernels, devices, debug stubs and agents."""
