"""Whether an open file still lies where it was opened, so that a restart would find it there."""

from pathlib import Path

from replaysvc.errors import StorageError


class Place:
    """Where a segment's data file lay, and which file it was, when this was made."""

    def __init__(self, segment: Path) -> None:
        """Raises OSError: there is none."""
        self._segment = segment
        self._found = self._look()

    def _look(self) -> tuple[int, int]:
        status = (self._segment / "data.mdb").stat()
        return status.st_dev, status.st_ino

    def check(self) -> None:
        """Raises StorageError if what is written to the open file is not in the one that a restart would find."""
        try:
            found = self._look()
        except FileNotFoundError:
            raise StorageError(f"segment {self._segment}: its file was removed while the service runs") from None
        if found != self._found:
            raise StorageError(f"segment {self._segment}: another file was put in its place while the service runs")
