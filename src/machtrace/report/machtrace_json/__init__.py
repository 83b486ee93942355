"""Reports as JSON of our own: all of the model, and nothing else.

The model's types are the schema: what is written of each field follows from its type, a field that
has its usual value is left out, and ``docs/report.schema.json`` is made of the same types.
"""
