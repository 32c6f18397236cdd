"""Who writes and who samples, and whether they do: actors and learners, each with a state and a sentence.

An actor is
  lost     it has an open episode, and was not heard of for more than half of the table's lease;
  stale    it has an open episode or was heard of in the last 30 s, and writes with a policy that is more than 10 versions
           behind the newest and older than what was the newest a minute ago: versions count updates in some projects and
           publications in others;
  writing  steps of it were committed in the last 10 s;
  idle     else.
A learner is waiting where it spent at least half of the last minute waiting, or asked and got nothing in all of it; sampling
where not; idle where it did neither in the last 10 s.
"""

from dataclasses import replace
from typing import NamedTuple

from replaysvc.views import ActorView, LearnerView

HEARD_S, RECENT_S = 30.0, 10.0
BEHIND = 10  # versions
_WAITS = 0.5  # share of the time

STALE_RULE = (
    f"An actor is stale if it writes with a policy that is more than {BEHIND} versions behind the newest, and older than what "
    "was the newest a minute ago."
)


class SeenActor(NamedTuple):
    """An actor of a table. view: with its state. steps_per_s: of the last ten seconds. staleness: versions that its policy is
    behind the newest, None if it gives none."""

    table: str
    view: ActorView
    steps_per_s: float
    staleness: int | None


def judged_actor(
    table: str, actor: ActorView, steps_per_s: float, lease_s: float, newest: int | None, minute_ago: int | None
) -> SeenActor:
    """Returns an actor with its state. newest, minute_ago: policy versions, None if they are not known."""
    behind = max(0, newest - actor.policy_version) if newest is not None and actor.policy_version >= 0 else None
    state, sentence = _state_of(actor, steps_per_s, lease_s, behind, minute_ago)
    return SeenActor(table, replace(actor, state=state, sentence=sentence), steps_per_s, behind)


def _state_of(
    actor: ActorView, steps_per_s: float, lease_s: float, behind: int | None, minute_ago: int | None
) -> tuple[str, str]:
    heard = f"last heard of {actor.last_seen_s:.0f} s ago"
    if actor.open_episodes and actor.last_seen_s > lease_s / 2:
        ends = f"its open episodes end as lost after {lease_s:g} s"
        return "lost", f"{heard}, {ends}; see whether its process lives and reaches the service"
    is_there = actor.open_episodes or actor.last_seen_s <= HEARD_S
    late = minute_ago is not None and actor.policy_version < minute_ago
    if behind is not None and behind > BEHIND and late and is_there:
        does = "it writes with" if steps_per_s > 0 else f"{heard}, with"
        return "stale", f"{does} a policy {behind:,} versions behind; see whether it loads new parameters"
    if steps_per_s > 0:
        return "writing", f"it writes {steps_per_s:,.1f} steps/s"
    if actor.last_seen_s <= HEARD_S:
        return "idle", f"it is there, and wrote nothing in the last {RECENT_S:g} s"
    return "idle", f"{heard}; it has {'open episodes' if actor.open_episodes else 'ended all its episodes'}"


def judged_learner(learner: LearnerView) -> LearnerView:
    """Returns a learner with its state."""
    if learner.last_seen_s > RECENT_S:
        state, sentence = "idle", f"it last asked for a batch {learner.last_seen_s:.0f} s ago"
    elif learner.waited_share >= _WAITS:
        why = f": {learner.last_wait}" if learner.last_wait else ""
        state, sentence = "waiting", f"it waits {learner.waited_share:.0%} of the time{why}"
    elif learner.last_wait and not learner.items_per_s:  # it asks again and again, without waiting
        state, sentence = "waiting", f"it asks and gets nothing: {learner.last_wait}"
    else:
        state, sentence = "sampling", f"it draws {learner.items_per_s:,.0f} items/s"
    return replace(learner, state=state, sentence=sentence)
