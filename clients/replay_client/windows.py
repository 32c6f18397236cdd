"""Windows to protobuf messages, and how much one asks for."""

from typing import Any

from replaysvc.errors import SpecMismatchError
from replaysvc.requests import DenseReward, Episodes, Her, Sequences, SparseReward, Stack, Transitions, Window
from replaysvc.v1 import replay_pb2 as pb


def request_of(what: Window, **options: Any) -> pb.SampleRequest:
    """Returns the request for windows like `what`; `options` are the request's other fields.

    Functions stay here: the message of a `Her` with a reward function has no reward, which says that the client makes them.
    """
    match what:
        case Transitions():
            window = pb.Transitions(n_step=what.n_step, gamma=what.gamma, stack=_stack(what), her=_her(what.her))
            return pb.SampleRequest(transitions=window, **options)
        case Sequences():
            sequences = pb.Sequences(
                length=what.length, burn_in=what.burn_in, period=what.period, n_step=what.n_step, gamma=what.gamma,
                at_end=f"AT_END_{what.at_end.name}", stack=_stack(what), state=what.state, her=_her(what.her),
            )  # fmt: skip
            return pb.SampleRequest(sequences=sequences, **options)
        case Episodes():
            episodes = pb.Episodes(
                max_steps=what.max_steps, gamma=what.gamma, open_episodes=what.open_episodes, stack=_stack(what),
                her=_her(what.her),
            )  # fmt: skip
            return pb.SampleRequest(episodes=episodes, **options)
        case _:
            raise SpecMismatchError("what", "Transitions, Sequences or Episodes", type(what).__name__)


def _stack(what: Window) -> pb.Stack | None:
    stack = what.stack
    assert isinstance(stack, Stack)
    if stack == Stack(1):
        return None
    padding = f"STACK_PADDING_{stack.padding.name}"
    return pb.Stack(frames=stack.frames, padding=padding, columns=stack.columns)


def _her(her: Her | None) -> pb.Her | None:
    if her is None:
        return None
    message = pb.Her(
        goal=f"GOAL_{her.goal.name}", ratio=her.ratio, achieved=her.achieved, desired=her.desired,
        terminated=f"TERMINATED_{her.terminated.name}", open_episodes=her.open_episodes,
    )  # fmt: skip
    match her.reward:
        case SparseReward(threshold, success, failure):
            message.sparse.CopyFrom(pb.SparseReward(threshold=threshold, success=success, failure=failure))
        case DenseReward(scale, threshold):
            message.dense.CopyFrom(pb.DenseReward(scale=scale, threshold=threshold))
    return message
