"""Profiles that other systems' agents push."""
