"""The store on disk: the only place that knows LMDB and the directory layout. FORMAT.md describes the bytes."""

from replaysvc.storage.records import INDEX_DTYPE, EpisodeEntry
from replaysvc.storage.scrub import Scrub
from replaysvc.storage.snapshots import Snapshots
from replaysvc.storage.store import Store
from replaysvc.storage.system import CRASH_POINTS, System
from replaysvc.storage.table_store import LoadedTable, TableStore

__all__ = ["CRASH_POINTS", "INDEX_DTYPE", "EpisodeEntry", "LoadedTable", "Scrub", "Snapshots", "Store", "System", "TableStore"]
