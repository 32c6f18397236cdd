"""Who writes and who samples, and whether they do: actors and learners, each with a state and a sentence.

An actor is
  lost     it has an open episode, and was not heard of for more than half of the table's lease;
  stale    it was heard of in the last 30 s, and writes with a policy that is more than 10 versions behind the newest and older
           than what was the newest a minute ago: versions count updates in some projects and publications in others;
  writing  steps of it were committed in the last 10 s;
  idle     else.
A learner is waiting where it spent at least half of the last minute waiting, sampling where not, idle where it did neither in
the last 10 s.
"""

from typing import Any

from replaysvc.admin.context import Admin
from replaysvc.admin.watch import Watch
from replaysvc.errors import NotFoundError
from replaysvc.table.actors import newest_policy
from replaysvc.views import ActorView, LearnerView

HEARD_S, RECENT_S = 30.0, 10.0
BEHIND = 10  # versions
_WAITS = 0.5  # share of the time
_MOST = 2000  # told


def actors_of(admin: Admin, watch: Watch) -> dict[str, Any]:
    """Returns the actors of all tables, those in trouble first, then those heard of last."""
    seen: list[tuple[str, float, ActorView]] = []
    for name in admin.replay.tables():
        try:
            table = admin.replay.engine(name)
            lease_s = table.config.lease_s
            seen += [(name, lease_s, actor) for actor in table.actors.seen()]
        except NotFoundError:  # deleted meanwhile
            continue
    newest = newest_policy(admin.replay.params_versions(), [actor.policy_version for _, _, actor in seen])
    minute_ago = watch.policy_of_a_minute_ago()
    rows = [told_actor(table, a, watch.actor_rate(table, a.name), lease, newest, minute_ago) for table, lease, a in seen]
    rows.sort(key=lambda row: (row["state"] not in ("lost", "stale"), row["last_seen_s"]))
    return {"newest_policy_version": newest, "actors": rows[:_MOST]}


def told_actor(
    table: str, actor: ActorView, steps_per_s: float, lease_s: float, newest: int | None, minute_ago: int | None
) -> dict[str, Any]:
    """Returns what is told of an actor."""
    version = actor.policy_version
    staleness = max(0, newest - version) if newest is not None and version >= 0 else None
    state, sentence = _state_of(actor, steps_per_s, lease_s, staleness, minute_ago)
    return {
        "table": table, "name": actor.name, "steps": actor.steps, "episodes": actor.episodes,
        "open_episodes": actor.open_episodes, "sessions": actor.sessions,
        "policy_version": version if version >= 0 else None, "staleness": staleness, "last_seen_s": actor.last_seen_s,
        "steps_per_s": steps_per_s, "state": state, "sentence": sentence,
    }  # fmt: skip


def _state_of(
    actor: ActorView, steps_per_s: float, lease_s: float, staleness: int | None, minute_ago: int | None
) -> tuple[str, str]:
    heard = f"last heard of {actor.last_seen_s:.0f} s ago"
    if actor.open_episodes and actor.last_seen_s > lease_s / 2:
        ends = f"its open episodes end as lost after {lease_s:g} s"
        return "lost", f"{heard}, {ends}; see whether its process lives and reaches the service"
    late = minute_ago is not None and actor.policy_version < minute_ago
    if staleness is not None and staleness > BEHIND and late and actor.last_seen_s <= HEARD_S:
        return "stale", f"it writes with a policy {staleness:,} versions behind; see whether it loads new parameters"
    if steps_per_s > 0:
        return "writing", f"it writes {steps_per_s:,.1f} steps/s"
    if actor.last_seen_s <= HEARD_S:
        return "idle", f"it is there, and wrote nothing in the last {RECENT_S:g} s"
    return "idle", f"{heard}; it has {'open episodes' if actor.open_episodes else 'ended all its episodes'}"


def learners_of(admin: Admin) -> dict[str, Any]:
    """Returns the learners, those seen last first."""
    return {"learners": [told_learner(learner) for learner in admin.activity.learners()[:_MOST]]}


def told_learner(learner: LearnerView) -> dict[str, Any]:
    """Returns what is told of a learner."""
    if learner.last_seen_s > RECENT_S:
        state, sentence = "idle", f"it last asked for a batch {learner.last_seen_s:.0f} s ago"
    elif learner.waited_share >= _WAITS:
        why = f": {learner.last_wait}" if learner.last_wait else ""
        state, sentence = "waiting", f"it waits {learner.waited_share:.0%} of the time{why}"
    else:
        state, sentence = "sampling", f"it draws {learner.items_per_s:,.0f} items/s"
    return {
        "name": learner.name, "table": learner.table, "sampler": learner.sampler, "items": learner.items,
        "items_per_s": learner.items_per_s, "batches_per_s": learner.batches_per_s, "mean_s": learner.mean_s,
        "waited_share": learner.waited_share, "last_wait": learner.last_wait, "last_seen_s": learner.last_seen_s,
        "state": state, "sentence": sentence,
    }  # fmt: skip
