"""Stores of every format version that was ever written open with all they hold; one of a newer version is refused untouched."""

import json
import re
import shutil
from pathlib import Path

import pytest

from replaysvc import FieldSpec, Signature, StoreConfig
from replaysvc.errors import FormatVersionError
from replaysvc.replay import Replay
from replaysvc.storage.store import FIRST_FORMAT, FORMAT
from tests.store_builders import open_store
from tests.torture.lmdb_pages import read_layout

GOLDEN = Path(__file__).parents[1] / "golden"
STORES = sorted(GOLDEN.glob("store_v*[0-9]"))
SMALL = StoreConfig(recent_cache_bytes=1 << 20, faulted_cache_bytes=1 << 20, disk_reserve_bytes=0, scrub_bytes_per_s=0)


def contents(path):
    """All files and directories of a store, with their bytes and times of change."""
    return {
        entry.relative_to(path).as_posix(): (entry.stat().st_mtime_ns, entry.read_bytes() if entry.is_file() else None)
        for entry in [path, *path.rglob("*")]
    }


def test_there_is_a_golden_store_of_every_format_version_that_a_release_has_written():
    versions = {json.loads((store / "FORMAT").read_bytes())["format"] for store in STORES}
    assert versions == set(range(FIRST_FORMAT, FORMAT + 1))
    assert [int(re.search(r"\d+$", store.name)[0]) for store in STORES] == sorted(versions)


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
def test_store_of_every_version_opens_and_every_chunk_in_it_is_read(store, tmp_path):
    """As many as its files hold, but for those of deleted episodes, which no layout tells: by the index that was loaded."""
    path = tmp_path / "store"
    shutil.copytree(store, path)
    lying = sum(value.database == b"chunks" for file in store.rglob("data.mdb") for value in read_layout(file).values)
    opened = open_store(path)
    read = 0
    for table in opened.tables().values():
        loaded = table.load()
        assert (table.quarantined_segments, table.damaged_records) == (0, 0)
        chunks = table.read(loaded.index["chunk_id"])
        assert [int.from_bytes(chunk[8:16], "little") for chunk in chunks] == loaded.index["checksum"].tolist()
        read += len(chunks)
    assert 0 < read <= lying
    assert opened.get_params("policy") is not None
    opened.close()


def test_store_of_the_first_version_is_sampled_written_to_and_opened_again(tmp_path):
    path = tmp_path / "store"
    shutil.copytree(GOLDEN / "store_v1", path)
    with Replay(path, SMALL) as replay:
        table = replay.table("steps")
        batch = table.sample(64, seed=1)
        first = batch.observation["count"]
        assert (batch.next_observation["count"] == first + 1).all()
        assert (first == 100 * batch.episode_id + batch.t).all()
        assert table.delete_episodes([0]) == 1  # raises the store's version
    assert json.loads((path / "FORMAT").read_bytes())["format"] == 2
    with Replay(path, SMALL) as replay:
        assert [record.episode_id for record in replay.table("steps").episodes()] == [2, 1]


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
@pytest.mark.parametrize("kind", ["the store", "only who may read it"])
def test_store_of_a_newer_version_is_refused_in_words_and_nothing_in_it_is_touched(store, kind, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(store, path)
    (path / "tmp").mkdir()
    (path / "tmp" / "left over").write_bytes(b"of the newer release")
    content = json.loads((path / "FORMAT").read_bytes())
    newer = {"min_reader": FORMAT + 1} | ({"format": FORMAT + 1} if kind == "the store" else {})
    (path / "FORMAT").write_text(json.dumps(content | newer))
    before = contents(path)
    with pytest.raises(FormatVersionError, match=f"expected format version {FORMAT}, found"):
        Replay(path, SMALL)
    assert contents(path) == before


def test_store_of_a_newer_version_that_this_one_may_read_opens(tmp_path):
    """`min_reader` decides: a newer release added what this one may pass over."""
    path = tmp_path / "store"
    shutil.copytree(GOLDEN / "store_v1", path)
    content = json.loads((path / "FORMAT").read_bytes())
    (path / "FORMAT").write_text(json.dumps(content | {"format": FORMAT + 1, "a new key": [1]}))
    with Replay(path, SMALL) as replay:
        assert replay.table("steps").stats().steps == 20
        replay.create_table("new", Signature(FieldSpec("", (), float), FieldSpec("", (), int)))
    assert json.loads((path / "FORMAT").read_bytes())["format"] == FORMAT + 1
