"""The files of the dashboard. They hold no data, and each is read once; no path of a request reaches the disk."""

import gzip
import hashlib
import importlib.util
import threading
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from replaysvc.errors import NotFoundError

_STATIC = Path(__file__).with_name("static")
_TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml", ".png": "image/png", ".woff2": "font/woff2", ".json": "application/json",
}  # fmt: skip
PLOTLY = "plotly.min.js"
"""Of the package plotly: a library of charts, so that none is loaded from elsewhere."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file: its bytes, as they are and compressed."""

    content_type: str
    body: bytes
    packed: bytes
    tag: str


class Assets:
    """The files by name, relative to the folder `static`. Thread-safe."""

    def __init__(self, folder: Path = _STATIC) -> None:
        self._paths = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix in _TYPES and not path.is_symlink()
        }
        if (plotly := _plotly()) is not None:
            self._paths[PLOTLY] = plotly
        self._lock = threading.Lock()
        self._read: dict[str, Asset] = {}

    @property
    def names(self) -> list[str]:
        """Returns the names of all files."""
        return sorted(self._paths)

    def get(self, name: str) -> Asset:
        """Returns a file. Raises NotFoundError: it is not one of `names`."""
        path = self._paths.get(name)
        if path is None:
            raise NotFoundError(f"there is no file {name[:100]!r}")
        with self._lock:
            if name not in self._read:
                body = path.read_bytes()
                tag = hashlib.blake2b(body, digest_size=12).hexdigest()
                self._read[name] = Asset(_TYPES[path.suffix], body, gzip.compress(body, 6, mtime=0), f'"{tag}"')
            return self._read[name]

    def answer(self, request: Request, name: str) -> Response:
        """Returns a file as an answer, compressed for whoever takes that; to whoever has it already, that nothing changed.

        Raises:
          NotFoundError: it is not one of `names`.
        """
        asset = self.get(name)
        headers = {"etag": asset.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if asset.tag in [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]:
            return Response(b"", 304, headers)
        offered = [part.split(";")[0].strip() for part in request.headers.get("accept-encoding", "").split(",")]
        body = asset.body
        if "gzip" in offered and len(asset.packed) < len(body):
            body, headers["content-encoding"] = asset.packed, "gzip"
        return Response(body, 200, headers | {"content-type": asset.content_type})


def _plotly() -> Path | None:
    """Returns where plotly.js lies, without loading the package, which is slow and not needed."""
    found = importlib.util.find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]) / "package_data" / PLOTLY
    return path if path.is_file() else None
