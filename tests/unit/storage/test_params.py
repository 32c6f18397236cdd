"""Parameter sets: the newest version of each name, whole or not at all."""

import pytest

from replaysvc.errors import AlreadyExistsError, CapacityError, ChunkCorruptError
from replaysvc.storage import System
from tests.store_builders import open_store


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def test_newest_version_is_kept_also_over_a_restart(path):
    store = open_store(path)
    store.put_params("policy", 3, b"three")
    store.put_params("policy", 7, b"seven")
    store.put_params("target", 0, b"")
    assert store.get_params("policy") == (7, b"seven")
    store.close()
    store = open_store(path)
    assert store.params() == {"policy": 7, "target": 0}
    assert store.get_params("policy") == (7, b"seven")
    assert store.get_params("target") == (0, b"")
    assert store.get_params("other") is None
    store.close()


@pytest.mark.parametrize("version, data", [(6, b"six"), (7, b"another seven"), (0, b"seven")])
def test_version_that_is_not_newer_is_refused_and_changes_nothing(path, version, data):
    store = open_store(path)
    store.put_params("policy", 7, b"seven")
    with pytest.raises(AlreadyExistsError, match=f"expected a version above 7, found {version}"):
        store.put_params("policy", version, data)
    assert store.get_params("policy") == (7, b"seven")
    store.close()


def test_putting_the_same_again_is_harmless(path):
    store = open_store(path)
    store.put_params("policy", 7, b"seven")
    store.put_params("policy", 7, b"seven")
    assert store.get_params("policy") == (7, b"seven")
    store.close()


def test_every_flipped_bit_and_every_cut_is_noticed(path):
    """28 bytes of header: `RPP1`, the version, the length and the checksum, then the data."""
    store = open_store(path)
    store.put_params("policy", 7, b"seven")
    file = path / "params" / "policy"
    whole = file.read_bytes()
    assert len(whole) == 28 + 5
    damaged = [whole[:size] for size in range(len(whole))] + [whole + b"\0"]
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(ChunkCorruptError, match="params policy"):
            store.get_params("policy")
    file.write_bytes(whole)
    assert store.get_params("policy") == (7, b"seven")
    store.close()


@pytest.mark.parametrize("content", [b"", b"RPP1", b"XXXX" + bytes(29), b"RPP1" + b"\xff" * 7 + b"\x7f" + bytes(17)])
def test_damaged_set_is_told_after_a_restart_and_may_be_replaced_by_any_version(path, content):
    """The last one claims the largest version there is, above which no version could ever be put."""
    store = open_store(path)
    store.put_params("policy", 7, b"seven")
    store.close()
    (path / "params" / "policy").write_bytes(content)
    store = open_store(path)
    assert store.params()["policy"] == (1 << 63) - 1
    with pytest.raises(ChunkCorruptError):
        store.get_params("policy")
    store.put_params("policy", 2, b"two")
    assert store.get_params("policy") == (2, b"two")
    store.close()


def test_set_that_could_not_be_written_leaves_the_old_one(path):
    class Refusing(System):
        refuse = False

        def write_file(self, path, data):
            super().write_file(path, data[:10] if self.refuse else data)
            if self.refuse:
                raise OSError(28, "No space left on device")

    disk = Refusing()
    store = open_store(path, disk)
    store.put_params("policy", 1, b"one")
    disk.refuse = True
    with pytest.raises(CapacityError, match="No space left"):
        store.put_params("policy", 2, b"two")
    assert (store.get_params("policy"), store.params()) == ((1, b"one"), {"policy": 1})
    disk.refuse = False
    store.put_params("policy", 2, b"two")
    store.close()
    store = open_store(path)
    assert store.get_params("policy") == (2, b"two")
    store.close()
