"""The floors and package owners of replaysvc/ARCHITECTURE.md, read off the source, and a toy tree that breaks each rule."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LONGEST_MODULE = 400

FLOORS = (
    ("errors",),
    ("checks", "options", "config", "requests", "ragged", "spec", "spaces", "tensors", "types", "views"),
    (
        "codec", "selectors", "limiter", "windows", "nstep", "relabel", "layout", "extent", "batch", "chunk_steps", "capacity",
        "histogram", "metadata", "writer", "interface",
    ),
    ("storage", "maintenance", "ring", "cache"),
    ("index", "sampling", "table"),
    ("embedded_sink", "jobs", "embedded_table", "keeper", "replay"),
    ("access", "activity", "health", "rpc", "metrics", "admin"),
    ("settings", "logs", "serving", "demo", "cli", "operate", "look", "plan", "watch", "top", "__main__"),
)  # fmt: skip
"""Modules and folders of replaysvc, the lowest first. Within a floor each imports only those that stand before it."""

FLOOR = {name: number for number, floor in enumerate(FLOORS) for name in floor}
PLACE = {name: place for place, name in enumerate(name for floor in FLOORS for name in floor)}
CLIENT_FLOORS = 3  # floors 0 to 2 are what the thin client may import
PURE_FLOORS = 3  # floors 0 to 2 have no files, threads, clocks or random state
COMMANDS = 7

OWNERS = {
    "lmdb": ("replaysvc/storage/segment.py", "replaysvc/maintenance/examine.py"),  # the latter in a process that may end of it
    "zstandard": ("replaysvc/codec/zstd.py",),
    "xxhash": ("replaysvc/codec/checksum.py",),
    "torch": ("replaysvc/tensors.py", "clients/dqn/"),
    "safetensors": ("clients/dqn/",),
    "gymnasium": ("clients/replay_client/gym/", "clients/dqn/"),
    "grpc": ("replaysvc/rpc/", "clients/replay_client/"),
    "grpc_health": ("replaysvc/rpc/",),
    "google": ("replaysvc/rpc/", "clients/replay_client/"),  # protobuf
    "replaysvc.v1": ("replaysvc/rpc/", "clients/replay_client/"),
    "typer": ("replaysvc/cli.py", "replaysvc/look.py", "replaysvc/operate.py", "replaysvc/plan.py", "replaysvc/top.py"),
    "rich": (
        "replaysvc/cli.py", "replaysvc/demo.py", "replaysvc/look.py", "replaysvc/operate.py", "replaysvc/plan.py",
        "replaysvc/top.py",
    ),
    "fastapi": ("replaysvc/admin/",),
    "starlette": ("replaysvc/admin/",),
    "uvicorn": ("replaysvc/admin/",),
    "h11": ("replaysvc/admin/",),
    "anyio": ("replaysvc/admin/",),
    "prometheus_client": ("replaysvc/metrics.py",),
    "grpc_reflection": ("replaysvc/rpc/",),
    "pydantic": ("replaysvc/settings.py",),
    "pydantic_settings": ("replaysvc/settings.py",),
    "replay_client": ("replaysvc/cli.py", "replaysvc/demo.py", "replaysvc/plan.py", "clients/"),
    "dqn": ("replaysvc/demo.py", "clients/dqn/"),
    "numpy": ("replaysvc/", "clients/"),
}
"""Who may import what. A package that is neither here nor part of Python has no owner, and none may import it."""

IMPURE = {
    "asyncio", "concurrent", "datetime", "glob", "io", "mmap", "multiprocessing", "os", "pathlib", "random", "secrets",
    "shutil", "socket", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
RANDOM_TYPES = {"Generator", "BitGenerator", "SeedSequence"}
EXEMPT = {("replaysvc/codec/zstd.py", "threading")}  # one decompressor for each thread: they must not be shared


APART = {("admin", "rpc"), ("metrics", "rpc")}  # the two doors, and what tells of both: none opens the other


class Import(NamedTuple):
    name: str
    lazy: bool  # within a function


def modules(root: Path) -> list[str]:
    """Returns the paths of the written modules, relative to `root`; generated ones are not among them."""
    found = [path for top in ("replaysvc", "clients") for path in (root / top).rglob("*.py")]
    return sorted(path.relative_to(root).as_posix() for path in found if "v1" not in path.parts)


def imports(tree: ast.AST) -> Iterator[Import]:
    """Yields every imported name, dotted; `from a import b` gives a.b, since b may be a module."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lazy_nodes = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        lazy = id(node) in lazy_nodes
        if isinstance(node, ast.ImportFrom):
            yield from (Import("." * node.level + f"{node.module or ''}.{alias.name}", lazy) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (Import(alias.name, lazy) for alias in node.names)


def misdirected(path: str, found: list[Import]) -> Iterator[str]:
    """Yields imports that point upwards, or sideways out of turn."""
    parts = path.removesuffix(".py").split("/")
    for name, lazy in found:
        if name.startswith("."):
            yield f"{name}: relative"
        top, _, rest = name.partition(".")
        part = rest.partition(".")[0]
        if top != "replaysvc" or part in ("v1", "__version__"):
            continue
        if parts[:2] == ["clients", "dqn"]:
            yield f"{name}: dqn imports replay_client only"
        elif parts[0] == "clients":
            if FLOOR.get(part, CLIENT_FLOORS) >= CLIENT_FLOORS:
                yield f"{name}: above the client"
        elif (parts[1], part) in APART:
            yield f"{name}: from one door into another"
        elif part != parts[1]:
            floor, own = FLOOR.get(part, COMMANDS), FLOOR[parts[1]]  # the package itself can load all of it
            if floor > own or (floor == own and not lazy and PLACE.get(part, 0) > PLACE[parts[1]]):
                yield f"{name}: upwards"


def unowned(path: str, found: list[Import]) -> Iterator[str]:
    """Yields imports of packages that have another owner, or none."""
    for name, _ in found:
        package = "replaysvc.v1" if name.startswith("replaysvc.v1") else name.partition(".")[0]
        if package in sys.stdlib_module_names or package in ("", "replaysvc"):
            continue
        if not path.startswith(OWNERS.get(package, ())):
            yield f"{name}: not by its owner"


def impure(path: str, tree: ast.AST, found: list[Import]) -> Iterator[str]:
    """Yields what reaches for files, threads, clocks or random state."""
    for name in sorted({name.partition(".")[0] for name, _ in found} & IMPURE):
        if (path, name) not in EXEMPT:
            yield f"{name}: impure"
    for name, _ in found:
        if name.startswith("numpy.random"):
            yield f"{name}: random state"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield "open(): a file"
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "np.random" and node.attr not in RANDOM_TYPES:
            yield f"np.random.{node.attr}: random state"


def violations(root: Path) -> list[str]:
    """Returns one line for each broken rule in the tree at `root`."""
    broken = []
    for path in modules(root):
        source = (root / path).read_text()
        tree = ast.parse(source)
        found = list(imports(tree))
        own = path.removesuffix(".py").split("/")[1]
        if path.startswith("replaysvc/") and own not in FLOOR and own != "__init__":
            broken.append(f"{path}: stands on no floor")
            continue
        if path != "replaysvc/__init__.py":  # which loads the engine when it is asked for
            broken += [f"{path}: {line}" for line in misdirected(path, found)]
        broken += [f"{path}: {line}" for line in unowned(path, found)]
        if path.startswith("replaysvc/") and FLOOR.get(own, 0) < PURE_FLOORS and own != "__init__":
            broken += [f"{path}: {line}" for line in impure(path, tree, found)]
        if len(source.splitlines()) > LONGEST_MODULE:
            broken.append(f"{path}: over {LONGEST_MODULE} lines")
    return broken


def test_the_tree_keeps_its_floors_and_owners():
    assert violations(ROOT) == []


def test_every_name_on_a_floor_exists():
    package = ROOT / "replaysvc"
    assert [name for name in PLACE if not (package / name).is_dir() and not (package / f"{name}.py").is_file()] == []


def test_the_architecture_document_has_the_same_floors():
    rows = [line for line in (ROOT / "replaysvc/ARCHITECTURE.md").read_text().splitlines() if line[:3].strip("| ").isdigit()]
    documented = [{word.strip("/` ") for word in row.split("|")[2].split(",")} for row in rows]
    assert documented == [set(floor) for floor in FLOORS]


GOOD = {
    "replaysvc/__init__.py": "from replaysvc.replay import Replay",
    "replaysvc/spec.py": "import numpy as np\nfrom replaysvc.errors import E\ndef f():\n    from replaysvc.spaces import g",
    "replaysvc/spaces.py": "from replaysvc.spec import f\nfrom replaysvc import __version__",
    "replaysvc/selectors/uniform.py": "import numpy as np\ndef draw(rng: np.random.Generator): ...",
    "replaysvc/storage/segment.py": "import lmdb\nimport os\nfrom replaysvc.storage.records import KEY",
    "replaysvc/rpc/server.py": "import grpc\nfrom replaysvc.v1 import replay_pb2\nfrom replaysvc.replay import Replay",
    "clients/replay_client/client.py": "import grpc\nfrom replaysvc.writer import Writer\nfrom replay_client.table import T",
    "clients/dqn/learner.py": "import torch\nimport replay_client",
}

BAD = [
    ("replaysvc/spec.py", "from replaysvc.table import Table", "replaysvc.table.Table: upwards"),
    ("replaysvc/spec.py", "def f():\n    import replaysvc.table", "replaysvc.table: upwards"),
    ("replaysvc/table/table.py", "from replaysvc import open", "replaysvc.open: upwards"),
    ("replaysvc/codec/zstd.py", "from replaysvc import storage", "replaysvc.storage: upwards"),
    ("replaysvc/config.py", "from replaysvc.types import Batch", "replaysvc.types.Batch: upwards"),
    ("replaysvc/storage/store.py", "from replaysvc.cache import Cache", "replaysvc.cache.Cache: upwards"),
    ("replaysvc/replay.py", "from .table import Table", ".table.Table: relative"),
    ("replaysvc/table/table.py", "import lmdb", "lmdb: not by its owner"),
    ("replaysvc/storage/store.py", "import lmdb", "lmdb: not by its owner"),
    ("replaysvc/cache.py", "from zstandard import ZstdError", "zstandard.ZstdError: not by its owner"),
    ("replaysvc/replay.py", "import grpc", "grpc: not by its owner"),
    ("replaysvc/replay.py", "from replaysvc.v1 import replay_pb2", "replaysvc.v1.replay_pb2: not by its owner"),
    ("replaysvc/replay.py", "import pandas", "pandas: not by its owner"),
    ("replaysvc/nstep.py", "import time", "time: impure"),
    ("replaysvc/codec/delta.py", "from os import path", "os: impure"),
    ("replaysvc/windows.py", "open('x')", "open(): a file"),
    ("replaysvc/selectors/uniform.py", "import numpy as np\nnp.random.default_rng()", "np.random.default_rng: random state"),
    ("replaysvc/selectors/uniform.py", "from numpy import random", "numpy.random: random state"),
    ("replaysvc/admin/app.py", "from replaysvc.rpc import server", "replaysvc.rpc.server: from one door into another"),
    ("replaysvc/admin/app.py", "import grpc", "grpc: not by its owner"),
    ("replaysvc/helpers.py", "", "stands on no floor"),
    ("replaysvc/spec.py", "\n" * 401, "over 400 lines"),
    ("clients/replay_client/client.py", "from replaysvc.replay import Replay", "replaysvc.replay.Replay: above the client"),
    ("clients/replay_client/client.py", "import replaysvc", "replaysvc: above the client"),
    ("clients/replay_client/client.py", "import torch", "torch: not by its owner"),
    ("clients/dqn/learner.py", "from replaysvc import TableConfig", "replaysvc.TableConfig: dqn imports replay_client only"),
    ("clients/dqn/learner.py", "import grpc", "grpc: not by its owner"),
]


def plant(root: Path, sources: dict[str, str]) -> None:
    for path, source in sources.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(source)


def test_a_clean_toy_tree_passes(tmp_path):
    plant(tmp_path, GOOD)
    assert violations(tmp_path) == []


@pytest.mark.parametrize(("path", "source", "line"), BAD, ids=[f"{path}-{line.partition(':')[0]}" for path, _, line in BAD])
def test_a_toy_tree_that_breaks_a_rule_is_flagged(tmp_path, path, source, line):
    plant(tmp_path, GOOD | {path: source})
    assert violations(tmp_path) == [f"{path}: {line}"]
