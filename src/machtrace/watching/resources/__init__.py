"""Processor time and memory: conditions, and samples of the threads that cause them."""
