"""Recorded calls: who requested them, before or after consent, and what they prove."""
