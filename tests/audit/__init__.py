"""The audit, against programs whose calls are known."""
