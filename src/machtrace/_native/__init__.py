"""What must be C: stop, copy, resume. Mechanism only: no policy, no parsing."""
