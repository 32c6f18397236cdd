"""Who writes and who samples, as the pages tell it."""

from dataclasses import asdict
from typing import Any

from replaysvc.admin.context import Admin
from replaysvc.health.participants import STALE_RULE, SeenActor


def actors_of(admin: Admin) -> dict[str, Any]:
    """Returns the actors of all tables, those in trouble first, then those heard of last."""
    found = admin.health.actors()
    return {
        "newest_policy_version": found.newest_policy_version, "stale_rule": STALE_RULE,
        "actors": [_row(actor) for actor in found.seen],
    }  # fmt: skip


def _row(actor: SeenActor) -> dict[str, Any]:
    version = actor.view.policy_version
    return {"table": actor.table} | asdict(actor.view) | {
        "policy_version": version if version >= 0 else None, "staleness": actor.staleness, "steps_per_s": actor.steps_per_s,
    }  # fmt: skip


def learners_of(admin: Admin) -> dict[str, Any]:
    """Returns the learners, those seen last first."""
    return {"learners": [asdict(learner) for learner in admin.health.learners()]}
