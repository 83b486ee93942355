"""C extensions: suspending, copying and resuming threads, and inner loops; sources in native/."""
