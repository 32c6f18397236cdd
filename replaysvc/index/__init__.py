"""The index of a table in RAM: its chunks and episodes, the links between them, and what they tell."""

from replaysvc.index.chunk_links import NONE
from replaysvc.index.table_index import DEAD, DELETED, TERMINATED, TRUNCATED, Added, TableIndex

__all__ = ["DEAD", "DELETED", "NONE", "TERMINATED", "TRUNCATED", "Added", "TableIndex"]
