"""The command machtrace atos, with the options of Apple's."""
