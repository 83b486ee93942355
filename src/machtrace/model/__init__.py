"""Values that cross a stage boundary: inert, frozen, importing only :mod:`machtrace.errors`."""
