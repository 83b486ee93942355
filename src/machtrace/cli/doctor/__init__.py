"""The command machtrace doctor, one module for each group of checks."""
