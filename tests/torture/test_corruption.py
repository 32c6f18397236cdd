"""The corruption harness in small, and that it notices what it looks for."""

import random
import shutil

import pytest

from tests.torture.corruption import run
from tests.torture.damage import KINDS, OPERATIONS, Subject
from tests.torture.damage_store import STAGES, TABLES, Expected, Look, build
from tests.torture.lmdb_pages import read_layout


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("ages")
    build(root)
    return root


def test_no_damage_brings_out_a_wrong_byte_or_a_deleted_episode_or_ends_the_process():
    report = run(100, 11, workers=2)
    assert report.violations == []
    assert sum(report.counts[outcome] for outcome in ("harmless", "detected", "unnoticed")) == 100
    assert report.counts["detected"] > 40


def test_without_checksums_wrong_bytes_are_found():
    """The same harness, with the comparison of chunks' checksums switched off."""
    narrow = {"kinds": ("chunk payload",), "operations": ("flip", "bytes")}
    assert run(12, 11, workers=1, **narrow).violations == []
    assert run(12, 11, workers=1, without_checksums=True, **narrow).violations


def test_look_at_an_undamaged_store_finds_nothing_wrong_and_at_an_older_one_finds_deleted_episodes(root, tmp_path):
    from replaysvc.replay import Replay
    from tests.torture.damage_store import CONFIG

    for stage in ("0", str(STAGES - 1)):
        shutil.copytree(root / stage, tmp_path / stage)
    expected = Expected.read(tmp_path / str(STAGES - 1))
    assert all(expected.deleted[name] and expected.columns[name] for name in TABLES)
    for stage, found in (("0", True), (str(STAGES - 1), False)):
        look = Look()
        with Replay(tmp_path / stage, CONFIG) as replay:
            look.at(replay, expected)
        assert any("deleted episode" in sentence for sentence in look.wrong) is found
        assert bool(look.missing) is found


def test_every_kind_of_damage_and_every_operation_is_met(root, tmp_path):
    subject, rng, met = Subject(root), random.Random(0), set()
    for i in range(400):
        damage = subject.strike(tmp_path / str(i), rng, KINDS, OPERATIONS)
        met |= {damage.kind, damage.operation}
        shutil.rmtree(tmp_path / str(i))
    assert met == {*KINDS, *OPERATIONS}


def test_store_is_the_same_each_time_so_that_a_case_can_be_seen_again(root, tmp_path):
    build(tmp_path)
    for stage in map(str, range(STAGES)):
        files = [file.relative_to(root / stage) for file in (root / stage).rglob("*") if file.is_file()]
        assert files
        differing = [file for file in files if (tmp_path / stage / file).read_bytes() != (root / stage / file).read_bytes()]
        assert differing == []


def test_same_seed_makes_the_same_damage_and_leaves_the_original_alone(root, tmp_path):
    subject = Subject(root)
    before = {path: (subject.original / path).read_bytes() for path in subject.files}
    for case in range(40):
        pair = [subject.strike(tmp_path / f"{case}-{n}", random.Random(case), KINDS, OPERATIONS) for n in (0, 1)]
        assert pair[0] == pair[1]
    assert {path: (subject.original / path).read_bytes() for path in subject.files} == before


def test_layout_of_an_lmdb_file_names_the_bytes_of_its_values(root):
    """Every index record that it finds begins with its key, the chunk id."""
    files = list((root / str(STAGES - 1)).rglob("data.mdb"))
    assert len(files) > 4
    several_levels = 0
    for file in files:
        data, layout = file.read_bytes(), read_layout(file)
        index = [value for value in layout.values if value.database == b"index"]
        assert index
        for value in index:
            assert data[value.start : value.start + 8] == value.key[::-1]
        chunks = [value for value in layout.values if value.database == b"chunks"]
        assert all(data[value.start : value.start + 4] == b"RPC1" for value in chunks)
        assert [value.key for value in index] == [value.key for value in chunks]
        several_levels += len(layout.trees[b"index"]) > 1
    assert several_levels
