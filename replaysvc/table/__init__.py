"""The engine of one table around its one lock."""

from replaysvc.table.table import Table, check_table

__all__ = ["Table", "check_table"]
