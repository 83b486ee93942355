"""The call stack of any thread, on Apple platforms and beyond.

    target ──▶ threads + registers + stack bytes ──▶ unwind ──▶ addresses ─┐
          └──▶ images (uuid, load address, segments) ──────────────────────┴▶ symbolicate ──▶ frames
    frames ──▶ report

Each arrow is a value of :mod:`machtrace.model`. Only :mod:`machtrace.target` talks to a
process; all else is a function of what it returned.
"""
