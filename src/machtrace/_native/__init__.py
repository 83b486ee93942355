"""What must be C: stop, copy, resume; and the walk's loop. No policy, no parsing."""
