"""What is told of actors and learners: one state each."""

import pytest

from replaysvc.health.participants import BEHIND, STALE_RULE, judged_actor, judged_learner
from replaysvc.table.actors import newest_policy
from replaysvc.views import ActorView, LearnerView


def actor(**changes):
    known = {
        "name": "a", "steps": 100, "episodes": 2, "open_episodes": 1, "sessions": 1, "policy_version": 20, "last_seen_s": 1.0,
    }  # fmt: skip
    return ActorView(**(known | changes))


def told(view, rate=0.0, newest=20, minute_ago=20):
    return judged_actor("t", view, rate, 120.0, newest, minute_ago)


@pytest.mark.parametrize(
    ("changes", "rate", "newest", "minute_ago", "state"),
    [
        ({}, 5.0, 20, 20, "writing"),
        ({}, 0.0, 20, 20, "idle"),
        ({"last_seen_s": 60.0}, 0.0, 20, 20, "idle"),  # half of the lease
        ({"last_seen_s": 60.1}, 0.0, 20, 20, "lost"),
        ({"last_seen_s": 60.1}, 5.0, 20, 20, "lost"),  # though it wrote not long ago
        ({"last_seen_s": 9999.0, "open_episodes": 0}, 0.0, 20, 20, "idle"),  # it ended what it began
        ({}, 5.0, 30, 21, "writing"),  # ten versions behind
        ({}, 5.0, 31, 21, "stale"),
        ({}, 0.0, 31, 21, "stale"),
        ({}, 5.0, 31, 20, "writing"),  # a minute ago its version was the newest: it has had no time
        ({}, 5.0, 31, None, "writing"),  # nobody knows yet what was
        ({"last_seen_s": 31.0, "open_episodes": 0}, 0.0, 99, 90, "idle"),  # gone, not stale
        ({"policy_version": -1}, 5.0, 99, 90, "writing"),  # it tells none
        ({}, 5.0, None, None, "writing"),
    ],
)
def test_state_of_an_actor(changes, rate, newest, minute_ago, state):
    assert told(actor(**changes), rate, newest, minute_ago).view.state == state


def test_actor_is_told_with_its_staleness():
    table, view, rate, staleness = told(actor(), 2.5, 31, 21)
    assert (table, view.name, view.state, rate, staleness) == ("t", "a", "stale", 2.5, 11)
    assert view.sentence == "it writes with a policy 11 versions behind; see whether it loads new parameters"
    assert told(actor(policy_version=-1)).staleness is None
    assert told(actor(policy_version=25)).staleness == 0  # newer than what anybody has put


def test_stale_actor_that_is_silent_says_so_and_stays_stale_within_its_episode():
    view = told(actor(last_seen_s=45.0), 0.0, 31, 21).view
    silent = "last heard of 45 s ago, with a policy 11 versions behind; see whether it loads new parameters"
    assert (view.state, view.sentence) == ("stale", silent)


def test_rule_of_staleness_is_told_with_its_bounds():
    assert str(BEHIND) in STALE_RULE


@pytest.mark.parametrize(
    ("params", "written", "newest"),
    [
        ({"policy": 7, "other": 99}, [3], 7), ({}, [3, -1, 5], 5), ({}, [-1], None), ({}, [], None), ({"policy": 0}, [], 0),
        ({"policy": (1 << 63) - 1}, [4], 4),  # of a set that cannot be read
    ],
)  # fmt: skip
def test_newest_policy_is_that_of_the_parameters_or_else_of_the_steps(params, written, newest):
    assert newest_policy(params, written) == newest


@pytest.mark.parametrize(
    ("waited_share", "last_seen_s", "state", "sentence"),
    [
        (0.0, 1.0, "sampling", "it draws 2,560 items/s"),
        (0.49, 1.0, "sampling", "it draws 2,560 items/s"),
        (0.5, 1.0, "waiting", "it waits 50% of the time: 3 of 10 steps"),
        (0.9, 10.1, "idle", "it last asked for a batch 10 s ago"),
    ],
)
def test_state_of_a_learner(waited_share, last_seen_s, state, sentence):
    view = LearnerView(
        name="l", table="t", sampler="uniform", items=1, batches=1, items_per_s=2560.0, batches_per_s=10.0, mean_s=0.001,
        waited_share=waited_share, last_wait="3 of 10 steps", last_seen_s=last_seen_s,
    )  # fmt: skip
    found = judged_learner(view)
    assert (found.state, found.sentence) == (state, sentence)


@pytest.mark.parametrize(("last_wait", "state"), [("3 of 10 steps", "waiting"), ("", "sampling")])
def test_learner_that_asks_without_waiting_and_gets_nothing_is_waiting(last_wait, state):
    view = LearnerView(
        name="l", table="t", sampler="uniform", items=500, batches=5, items_per_s=0.0, batches_per_s=0.0, mean_s=0.001,
        waited_share=0.0, last_wait=last_wait, last_seen_s=1.0,
    )  # fmt: skip
    assert judged_learner(view).state == state
