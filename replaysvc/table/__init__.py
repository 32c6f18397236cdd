"""The engine of one table around its one lock."""

from replaysvc.table.initial import check_table
from replaysvc.table.table import Table

__all__ = ["Table", "check_table"]
