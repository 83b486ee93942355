"""What must be C: stop, copy, resume; and inner loops. The sources are in native/."""
