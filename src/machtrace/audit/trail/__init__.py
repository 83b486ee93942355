"""The audit trail: recorded calls of watched functions, who requested them, and what that proves.

Every module is a function of its columns: the calls may come from spools of the agent, from Frida,
from breakpoints or from text.
"""
