"""Which stacks a graph is of: a condition, and a function or a caller that they go through."""

from __future__ import annotations

from starlette.datastructures import QueryParams

from machtrace.frozen import dataclass
from machtrace.server.graphs.watched import caller_of, family_of, image_owners
from machtrace.warehouse.function_tree import MAX_NODES, FunctionTree, heaviest
from machtrace.warehouse.graphs.audit_matrix import cell_nodes
from machtrace.warehouse.graphs.rows import rows_of
from machtrace.warehouse.graphs.selection import joined, nodes_of, through
from machtrace.warehouse.selection import weights_of
from machtrace.warehouse.warehouse import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Stacks of a warehouse."""

    where: str = "true"
    """A condition over the columns of ``stacks_of_reports``."""
    function: str = ""
    """A function that the stacks go through; empty: any."""
    image: str | None = None
    """The image of the function; None: any."""
    family: str = ""
    """A family of functions that the stacks call; see ``warehouse.graphs.audit_matrix``."""
    caller: str | None = None
    """The family's caller; None: any."""

    @property
    def query(self) -> dict[str, str]:
        """The parameters of an address, but for the condition."""
        named = {"function": self.function, "family": self.family}
        made = {name: value for name, value in named.items() if value}
        if self.function and self.image is not None:
            made["image"] = self.image
        if self.family and self.caller is not None:
            made["caller"] = self.caller
        return made

    @property
    def is_part(self) -> bool:
        """Whether it has less than what the condition selects."""
        return bool(self.function or self.family)

    def tree(
        self, warehouse: Warehouse, most: int = MAX_NODES, rows: FunctionTree | None = None
    ) -> FunctionTree:
        """Return the heaviest functions of the stacks.

        Args:
            warehouse: with the stacks.
            most: how many.
            rows: the answer of :meth:`rows`, if it is known.

        Raises:
            ArgumentError: the condition is invalid.
        """
        if not self.is_part:
            return warehouse.flame(self.where, most)
        rows = rows or self.rows(warehouse)
        return heaviest(joined(rows, rows.tree.depth[1:], rows.tree.frame[1:], rows.own[1:]), most)

    def rows(self, warehouse: Warehouse) -> FunctionTree:
        """Return the stacks as rows that are not joined; see ``warehouse.graphs.rows``.

        Raises:
            ArgumentError: the condition is invalid.
        """
        rows = stored_rows(warehouse, self.where)
        if self.function:
            rows = through(rows, nodes_of(rows, self.function, self.image))
        if self.family:
            callers = caller_of(image_owners(warehouse))
            rows = through(rows, cell_nodes(rows, family_of, callers, self.family, self.caller))
        return rows


def stored_rows(warehouse: Warehouse, where: str) -> FunctionTree:
    """Return the stacks that a condition selects as rows that are not joined.

    Raises:
        ArgumentError: the condition is invalid.
    """
    forest, chunks = warehouse.stacks(where)
    return rows_of(forest, weights_of(forest, chunks)).tree


def read_selection(query: QueryParams, where: str) -> Selection:
    """Return the selection of an address.

    Args:
        query: its parameters.
        where: the condition.
    """
    return Selection(
        where=where,
        function=query.get("function", ""),
        image=query.get("image"),
        family=query.get("family", ""),
        caller=query.get("caller"),
    )
