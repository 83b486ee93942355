"""This process: its own threads, stopped and copied from within."""
