"""Captures and profiles as text, and in the formats that other tools read."""
