"""A warehouse: the stacks of crashes, hangs, profiles and audits of a fleet in one folder."""

from machtrace.errors import MissingExtraError

try:
    import pyarrow as _  # noqa: F401, ICN001 - nearly all modules use it
except ImportError:
    raise MissingExtraError("the warehouse", extra="warehouse") from None
