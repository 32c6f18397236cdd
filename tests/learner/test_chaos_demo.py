"""The demo under a service that is killed again and again, and the audit that tells whether it did any harm."""

import io
import sqlite3

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from dqn.actor import act
from dqn.audit import audit
from dqn.learner import Trainer
from dqn.processes import Children, Service
from dqn.rundir import Acknowledged, Metrics, Outage, RunDirectory, TrainEpisode
from dqn.task import make_env, make_table
from replaysvc.cli import app
from replaysvc.demo import run_demo, verdict
from tests.learner.test_dqn_run import StopAtFirstWait


def test_demo_solves_its_task_while_the_service_is_killed_and_nothing_is_lost_or_doubled(tmp_path):
    path = tmp_path / "run"
    console = Console(file=io.StringIO(), width=200, highlight=False)
    status = run_demo(directory=path, seed=1, kill_every_s=2, solved_return=150, console=console)
    printed = console.file.getvalue()
    assert status == 0, printed
    with Metrics(RunDirectory(path)) as metrics:
        kills = len(metrics.last(Outage, 1000))
        acknowledged = sum(row["steps"] for row in metrics.last(Acknowledged, 10))
    assert kills >= 2
    assert f"the service was killed {kills} times, and listened again within" in printed
    assert f"{acknowledged:,} steps were acknowledged to the actors: 0 lost, 0 doubled, 0 changed" in printed
    assert "0 errors in the logs of 5 processes" in printed
    assert "evaluation return" in printed


class Written:
    """A run with an actor's episodes in an embedded store, its notes beside it, and a hand to add others."""

    def __init__(self, replay, run) -> None:
        self.replay, self.run = replay, run
        self.table = make_table(replay, run.config)
        Trainer.create(run.config).publish(replay)
        with Metrics(run) as metrics:
            act(replay, run.config, 0, metrics, StopAtFirstWait())

    def audit(self):
        with Metrics(self.run) as metrics:
            return audit(self.replay, metrics, self.run.config)

    def write(self, name, *, actions=(0, 1, 1, 1, 1, 1), change=range, acknowledged=True, version=1):
        """Writes an episode of n steps as `change(n)` has them, and notes it as it was, and its actor's end."""
        env = make_env(self.run.config)
        observation, _ = env.reset(seed=3)
        rows, rewards = [observation], []
        over = False
        for action in actions:
            observation, reward, terminated, truncated, _ = env.step(action)
            rows.append(observation)
            rewards.append(reward)
            over = terminated or truncated
            if over:
                break
        assert over
        env.close()
        steps = change(len(rewards))
        with self.table.writer(actor="actor-7") as writer:
            writer.begin(rows[0], metadata={"seed": 3, "env": 0, "episode": name}, policy_version=version)
            for i in steps:
                end = {"terminated": terminated, "truncated": truncated} if i == steps[-1] else {}
                writer.append(np.int64(actions[i]), rewards[i], rows[i + 1], **end)
        note = TrainEpisode(
            episode=name, actor="actor-7", env=0, policy_version=1, return_=sum(rewards), length=len(rewards),
            terminated=terminated, truncated=truncated, seed=3, epsilon=0.0,
        )  # fmt: skip
        with Metrics(self.run) as metrics:
            metrics.write(note)
            if acknowledged:
                metrics.write(Acknowledged(actor="actor-7", life=name.rpartition("-")[0], steps=len(rewards)))


@pytest.fixture
def written(replay, make_run):
    return Written(replay, make_run())


def test_audit_of_whole_run_finds_every_step_and_no_fault(written):
    written.write("7e57-0")
    found = written.audit()
    assert found.clean, list(found.summary())
    records = written.table.episodes(limit=1000)
    assert found.steps == found.again == written.table.stats().steps == sum(record.length for record in records)
    assert found.finished == sum(record.closed for record in records) > 5
    assert found.unfinished == sum(not record.closed for record in records)
    assert found.unsure == 0


def test_audit_notices_an_episode_that_is_gone(written):
    record = written.table.episodes(closed_only=True)[0]
    written.table.delete_episodes([record.episode_id])
    (sentence,) = written.audit().lost
    assert record.metadata["episode"] in sentence


def test_audit_notices_that_the_whole_table_is_gone(written):
    written.replay.delete_table(written.run.config.table)
    assert written.audit().lost == ("there is no table chain",)


def test_audit_of_a_run_that_ended_before_its_first_step_finds_nothing(replay, make_run):
    run = make_run()
    with Metrics(run) as metrics:
        found = audit(replay, metrics, run.config)
    assert (found.clean, found.steps) == (True, 0)


def test_audit_notices_an_episode_that_is_stored_twice(written):
    written.write("7e57-0")
    with sqlite3.connect(written.run.metrics) as database:
        before = [database.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("train_episodes", "acknowledged")]
        written.write("7e57-0")
        database.execute("DELETE FROM train_episodes WHERE rowid > ?", before[0])
        database.execute("DELETE FROM acknowledged WHERE rowid > ?", before[1])
    database.close()
    found = written.audit()
    assert "episode 7e57-0 is stored 2 times" in found.doubled
    assert any("steps ever appended" in sentence for sentence in found.doubled)
    assert not found.lost


def test_audit_notices_an_episode_that_nobody_wrote(written):
    written.write("7e57-0")
    with sqlite3.connect(written.run.metrics) as database:
        database.execute("DELETE FROM train_episodes WHERE episode = '7e57-0'")
    database.close()
    assert any("its actor wrote none" in sentence for sentence in written.audit().doubled)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda n: [0, *range(2, n)], "lost"),
        (lambda n: [0, 1, *range(1, n)], "doubled"),
        (lambda n: [1, 0, *range(2, n)], None),
    ],
    ids=["step left out", "step twice", "steps swapped"],
)
def test_audit_notices_what_became_of_a_step(written, change, kind):
    written.write("7e57-0", actions=(1, 0, 1, 0, 1, 1, 1, 1), change=change)
    found = written.audit()
    assert any("7e57-0" in sentence for sentence in found.changed), list(found.summary())
    assert bool(found.lost) == (kind == "lost")
    assert bool(found.doubled) == (kind == "doubled")


def test_audit_notices_a_version_that_was_never_published(written):
    written.write("7e57-0", version=99)
    assert any("version" in sentence and "99" in sentence for sentence in written.audit().changed)


def test_episodes_of_an_actor_that_was_killed_may_be_missing_but_not_twice(written):
    written.write("dead-0", acknowledged=False)
    with sqlite3.connect(written.run.metrics) as database:
        database.execute("UPDATE train_episodes SET episode = 'dead-1' WHERE episode = 'dead-0'")  # noted, and never stored
    database.close()
    found = written.audit()
    assert found.clean
    assert found.unsure == 1
    written.write("dead-0", acknowledged=False)
    assert "episode dead-0 is stored 2 times" in written.audit().doubled


def test_steps_that_capacity_removed_are_not_lost_ones(replay, make_run):
    written = Written(replay, make_run(capacity_steps=60))
    written.write("7e57-0")
    found = written.audit()
    assert found.clean, list(found.summary())
    assert found.removed == written.table.stats().removed_steps_total > 0
    assert found.again < found.steps
    record = written.table.episodes(closed_only=True)[0]
    written.table.delete_episodes([record.episode_id])
    assert any("removed for capacity" in sentence for sentence in written.audit().lost)


@pytest.mark.parametrize("harm", ["none", "a step", "a log"])
def test_run_with_kills_is_well_only_if_nothing_is_lost_and_no_log_has_an_error(tmp_path, written, harm):
    with Children(tmp_path) as children:
        service = Service(children, written.run)
        assert service.await_listening()
        if harm == "a step":
            written.table.delete_episodes([written.table.episodes(closed_only=True)[0].episode_id])
        if harm == "a log":
            with (tmp_path / "service.log").open("a") as log:
                log.write("2026-01-02 03:04:05,678 ERROR replaysvc: no\n")
        well, lines = verdict(written.audit(), service, children)
    assert well == (harm == "none")
    assert "the service was killed 0 times" in lines
    assert any(f"{int(harm == 'a step')} lost, 0 doubled" in line for line in lines)
    assert f"{int(harm == 'a log')} errors in the logs of 1 processes" in lines


def test_command_line_gives_the_interval_to_the_demo_and_refuses_one_below_a_second(monkeypatch):
    given = {}
    monkeypatch.setattr("replaysvc.demo.run_demo", lambda **options: given.update(options) or 0)
    assert CliRunner().invoke(app, ["demo", "--kill-every", "2.5"]).exit_code == 0
    assert given["kill_every_s"] == 2.5
    assert CliRunner().invoke(app, ["demo"]).exit_code == 0
    assert given["kill_every_s"] is None
    refused = CliRunner().invoke(app, ["demo", "--kill-every", "0.5"])
    assert (refused.exit_code, "--kill-every" in refused.output) == (2, True)


def test_run_of_an_earlier_version_can_go_on(make_run):
    run = make_run()
    Metrics(run).close()
    with sqlite3.connect(run.metrics) as database:
        for table in ("acknowledged", "open_episodes", "outages"):
            database.execute(f"DROP TABLE {table}")
        database.execute("ALTER TABLE train_episodes DROP COLUMN episode")
        database.execute("INSERT INTO train_episodes (time_s, actor, length) VALUES (0, 'actor-0', 5)")
    database.close()
    with Metrics(run) as metrics:
        metrics.write(Acknowledged(actor="actor-0", life="7e57", steps=5))
        (old,) = metrics.last(TrainEpisode, 10)
    assert (old["episode"], old["length"]) == (None, 5)
