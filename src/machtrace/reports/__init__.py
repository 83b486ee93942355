"""Reports of crashes, hangs and samples: read, analyse, write.

A format of whole reports is a module or package here, with ``recognises()`` and ``read()``; one of
stacks alone, as debuggers and loggers print them, is a module of
:mod:`~machtrace.reports.backtraces`. Models to copy are :mod:`~machtrace.reports.swift.text_reader`
for text and :mod:`~machtrace.reports.kscrash.reader` for JSON. All readers share:

* :class:`~machtrace.reports.source.ReportSource`: the bytes, decoded and parsed once;
* :func:`~machtrace.reports.log_lines.log_lines`: lines without prefixes of loggers and terminals;
* :class:`~machtrace.reports.images.ListedImages` and :func:`~machtrace.reports.images.identifier`:
  frames' images, and their UUIDs or build-ids. Where each frame states its image's path and
  build-id, :class:`~machtrace.reports.backtraces.sanitizer.Modules` is the model instead;
* :class:`~machtrace.reports.consume.ObjectReader`: the known keys of a JSON object.

Regular expressions have no possessive groups, which CPython before 3.11.5 matches wrongly;
possessive characters and sets are right everywhere.

Nothing is dropped: keys and lines that a reader does not understand become ``details`` of the value
they belong to, lines under the key :data:`~machtrace.reports.log_lines.LINES`.
"""
