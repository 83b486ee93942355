"""ELF core files: threads, memory and images of a Linux process."""
