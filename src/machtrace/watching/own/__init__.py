"""This process itself, from what its watchdog of C recorded."""
