"""A manifest proves which files a snapshot has; it costs the same for a segment of any size."""

import json
import os
import time

import pytest

from replaysvc.errors import ChunkCorruptError, FormatVersionError, StorageError
from replaysvc.storage import manifest
from replaysvc.storage.manifest import Entry, Manifest, difference, read_manifest
from tests.store_builders import NOW, append_each, make_table, segments
from tests.unit.storage.test_snapshot import make_whole

GOLDEN = b"""{
 "manifest": 1,
 "store": "7b0e",
 "made_at_s": 1700000000.5,
 "files": {
  "FORMAT": {
   "bytes": 5,
   "hashed": 5,
   "xxh3": "00000000000000ff"
  },
  "tables/t/seg-00000000000000000000/data.mdb": {
   "bytes": 123456789,
   "hashed": 65536,
   "xxh3": "0123456789abcdef"
  }
 },
 "checksum": "c6e0a666ba746648"
}
"""
TOLD = Manifest(
    "7b0e",
    1_700_000_000.5,
    {"FORMAT": Entry(5, 5, 255), "tables/t/seg-00000000000000000000/data.mdb": Entry(123456789, 65536, 0x0123456789ABCDEF)},
)


def sealed(content):
    """A manifest of any content, with the checksum that fits."""
    return json.dumps(content | {"checksum": manifest._seal(content)}).encode()


def test_manifest_is_written_and_read_as_it_always_was(tmp_path):
    assert TOLD.to_bytes() == GOLDEN
    assert Manifest.from_bytes(tmp_path, GOLDEN) == TOLD
    assert TOLD.size == 123456794


def test_manifest_with_any_wrong_character_is_refused(tmp_path):
    for at in range(len(GOLDEN)):
        if GOLDEN[at : at + 1] not in (b" ", b"\n"):
            written = bytearray(GOLDEN)
            written[at] ^= 1
            with pytest.raises((ChunkCorruptError, FormatVersionError)):
                Manifest.from_bytes(tmp_path, bytes(written))


def test_without_the_checksum_a_wrong_number_would_be_believed(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "_seal", lambda content: "c6e0a666ba746648")
    assert Manifest.from_bytes(tmp_path, GOLDEN.replace(b"123456789", b"123456780")).size == 123456785


@pytest.mark.parametrize("written", [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, sealed({"manifest": 1})])
def test_what_is_no_manifest_is_refused(tmp_path, written):
    with pytest.raises(ChunkCorruptError, match="it cannot be read"):
        Manifest.from_bytes(tmp_path, written)


@pytest.mark.parametrize("size", ["x", None, 1e999, [], {}])
def test_numbers_that_are_none_are_refused(tmp_path, size):
    files = {"FORMAT": {"bytes": size, "hashed": 5, "xxh3": "ff"}}
    with pytest.raises(ChunkCorruptError, match="it cannot be read"):
        Manifest.from_bytes(tmp_path, sealed({"manifest": 1, "store": "", "made_at_s": 0, "files": files}))


def test_manifest_of_a_newer_release_is_told_as_such(tmp_path):
    with pytest.raises(FormatVersionError, match="expected version 1, found 2"):
        Manifest.from_bytes(tmp_path, sealed({"manifest": 2}))


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "tables/../../x", "", "tables//x", "./x", "x/", "a\0b"])
def test_paths_that_lead_out_of_the_snapshot_are_refused(tmp_path, name):
    files = {name: {"bytes": 1, "hashed": 1, "xxh3": "ff"}}
    with pytest.raises(ChunkCorruptError, match="expected paths within the snapshot"):
        Manifest.from_bytes(tmp_path, sealed({"manifest": 1, "store": "", "made_at_s": 0, "files": files}))


def test_manifest_of_a_snapshot_names_every_file_and_the_store(tmp_path):
    store, _ = make_whole(tmp_path / "store")
    store.snapshot(tmp_path / "copy", {"t": {"priorities": b"new"}})
    store.close()
    told = read_manifest(tmp_path / "copy")
    files = {str(file.relative_to(tmp_path / "copy")) for file in (tmp_path / "copy").rglob("*") if file.is_file()}
    assert told.files.keys() == files - {"MANIFEST.json"}
    assert (told.made_at_s, told.store) == (NOW, json.loads((tmp_path / "store" / "FORMAT").read_bytes())["uuid"])
    for name, entry in told.files.items():
        assert difference(tmp_path / "copy" / name, entry) == ""
        assert entry.size == (tmp_path / "copy" / name).stat().st_size
        assert entry.hashed == entry.size or name.endswith("data.mdb")
    assert (tmp_path / "copy" / "MANIFEST.json").stat().st_mode & 0o777 == 0o600


def test_difference_says_what_is_wrong_with_a_file(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100_000)
    entry = manifest.describe(file)
    assert (entry.size, entry.hashed) == (100_000, 65_536)
    file.write_bytes(b"x" * 65_535 + b"y" + b"x" * 34_464)
    assert difference(file, entry).startswith(f"expected XXH3 {entry.xxh3:016x} over its first 65536 bytes, found ")
    file.write_bytes(b"x" * 99_999)
    assert difference(file, entry) == "expected 100000 bytes, found 99999"
    file.unlink()
    assert difference(file, entry) == "expected 100000 bytes, found no file"
    file.mkdir()
    assert difference(file, entry) == "it cannot be read: Is a directory"


def test_manifest_is_there_before_the_snapshot_has_its_name_and_after_all_else(tmp_path):
    from replaysvc.storage import System

    order = []

    class Watched(System):
        def write_file(self, path, data):
            order.append(path.name)
            super().write_file(path, data)

        def copy(self, source, target):
            order.append(target.name)
            super().copy(source, target)

        def rename(self, source, target):
            order.append(f"{target.name} named")
            super().rename(source, target)

    store, _ = make_whole(tmp_path / "store", Watched())
    order.clear()
    store.snapshot(tmp_path / "copy", {"t": {"priorities": b"new"}})
    store.close()
    assert order[-3:] == ["FORMAT", "MANIFEST.json", "copy named"]


def test_directory_without_a_manifest_is_no_snapshot(tmp_path):
    with pytest.raises(StorageError, match=r"expected a MANIFEST.json in it, found none; `replaysvc snapshot` makes one"):
        read_manifest(tmp_path)


def test_time_of_a_snapshot_does_not_grow_with_the_bytes_of_its_segments(tmp_path):
    """Forty segments that are 4 GiB each, but for their place on the disk: 160 GB take as long as 3 MB."""
    store, table = make_table(tmp_path / "store")
    append_each(table, 0, 121)
    counted = []
    describe = manifest.describe

    def counting(file, hashed=None):
        entry = describe(file, hashed)
        counted.append(entry.hashed)
        return entry

    manifest.describe, seconds = counting, []
    try:
        for name in ("small", "large"):
            counted.clear()
            began = time.perf_counter()
            store.snapshot(tmp_path / name, {})
            seconds.append(time.perf_counter() - began)
            assert sum(counted) <= 42 * manifest.HEAD_BYTES
            for segment in segments(tmp_path / "store")[:-1]:
                os.truncate(segment / "data.mdb", 4 << 30)
    finally:
        manifest.describe = describe
    store.close()
    assert read_manifest(tmp_path / "large").size > 160e9
    assert seconds[1] < 10 * seconds[0] + 1
