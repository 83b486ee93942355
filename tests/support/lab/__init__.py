"""The lab: every walk of emulated programs compared with the true stack."""
