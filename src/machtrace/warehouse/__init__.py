"""A warehouse: the stacks of crashes, hangs, profiles and audits of a fleet in one folder."""
