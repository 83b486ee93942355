"""Processes that a Frida script is injected into."""
