"""Who writes, and who samples, over both doors."""

import json

import pytest

from replaysvc import Limiter, TableConfig
from replaysvc.errors import NotFoundError, NotReadyError, ReplayError, SpecMismatchError
from replaysvc.rpc import convert
from tests.builders import SCALARS, make_table, write_episode, write_episodes


def test_actors_of_each_table_are_told_the_newest_first(door):
    first, second = door.create_table("first", SCALARS), door.create_table("second", SCALARS)
    write_episodes(first, [3, 2], actor="early")
    write_episodes(first, [4], actor="late")
    writer = second.writer(actor="open")
    write_episode(writer, 5, end="open")
    writer.flush()
    told = door.activity()
    assert set(told.actors) == {"first", "second"}
    everyone = [seen for actors in told.actors.values() for seen in actors]
    counts = [(seen.name, seen.steps, seen.episodes, seen.open_episodes) for seen in everyone]
    assert counts == [("open", 5, 0, 1), ("late", 4, 1, 0), ("early", 5, 2, 0)]
    assert all(0 <= seen.last_seen_s < 60 and seen.sessions == 1 for seen in everyone)
    assert set(door.activity("second").actors) == {"second"}
    assert door.activity("first").actors["first"][0].name == "late"
    writer.close()


def test_newest_policy_version_is_the_published_one_else_the_newest_written_with(door):
    table = make_table(door, [3])
    assert door.activity().newest_policy_version is None
    with table.writer(actor="a") as writer:
        for version in (4, 6, 5):
            write_episode(writer, 2, policy_version=version)
    told = door.activity()
    assert (told.newest_policy_version, [seen.policy_version for seen in told.actors["t"] if seen.name == "a"]) == (6, [6])
    door.put_params("policy", b"x", version=3)
    door.put_params("other", b"x", version=99)
    assert door.activity().newest_policy_version == 3


def test_an_empty_store_and_a_table_that_nobody_wrote_to_have_no_actors(door):
    assert door.activity().actors == {}
    door.create_table("t", SCALARS)
    told = door.activity()
    assert (told.actors, told.learners) == ({}, ())


def test_of_a_great_many_actors_the_last_thousand_are_told(replay, served):
    engine = replay.create_table("t", SCALARS).name and replay.engine("t")
    for i in range(1100):
        engine.open_session(i.to_bytes(16, "big"), f"actor-{i}")
    for door in (replay, served):
        actors = door.activity().actors["t"]
        assert [seen.name for seen in actors] == [f"actor-{i}" for i in range(1099, 99, -1)]


def test_unknown_table_is_refused(door):
    with pytest.raises(NotFoundError, match="'absent' does not exist"):
        door.activity("absent")
    for name in (7, ""):
        with pytest.raises(SpecMismatchError):
            door.activity(name)


def test_what_a_newer_service_tells_besides_is_passed_over(served, monkeypatch):
    make_table(served, [3])
    told = convert.activity_json(served.activity())
    monkeypatch.setattr(convert, "activity_json", lambda view: told.replace('"steps"', '"mood": "good", "steps"'))
    assert served.activity().actors["t"][0].steps == 3


def test_service_tells_who_samples(served):
    make_table(served, [3]).sample(2)
    served.create_table("other", SCALARS)
    (learner,) = served.activity().learners
    assert (learner.table, learner.sampler, learner.items, learner.batches) == ("t", "uniform", 2, 1)
    assert served.activity("t").learners[0].items == 2
    assert served.activity("other").learners == ()


def test_embedded_store_tells_no_learners_apart(replay):
    table = make_table(replay, [3])
    table.sample(2)
    assert replay.activity().learners == ()
    with pytest.raises(ReplayError):
        replay.close() or replay.activity()


def test_service_tells_states_verdict_and_disk_and_an_older_one_does_not(served, monkeypatch):
    table = served.create_table("t", SCALARS, TableConfig(limiter=Limiter(min_steps=10)))
    write_episodes(table, [3], actor="a")
    with pytest.raises(NotReadyError):
        table.sample(4, timeout_s=0.2)
    told = served.activity()
    assert told.actors["t"][0].state in ("writing", "idle")
    assert [(learner.state, learner.last_wait) for learner in told.learners] == [("waiting", "table t: 3 of 10 steps")]
    assert told.disk.view.total_bytes >= told.disk.view.free_bytes > 0
    assert told.verdict.status in ("ok", "warning")
    assert all(reason.level in ("failing", "warning", "note") and reason.sentence for reason in told.verdict.reasons)

    answer = json.loads(convert.activity_json(told))
    new = {"verdict", "disk"}
    for each in (*answer["actors"], *answer["learners"]):
        del each["state"], each["sentence"]
    monkeypatch.setattr(convert, "activity_json", lambda _: json.dumps({k: v for k, v in answer.items() if k not in new}))
    older = served.activity()
    assert (older.verdict, older.disk, older.actors["t"][0].state, older.learners[0].state) == (None, None, "", "")
