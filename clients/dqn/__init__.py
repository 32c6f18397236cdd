"""The reference learner: double DQN whose actors, learner and evaluator are separate processes that share a replay service.

Read `learner.py` first. Start `python -m dqn.learner`, `dqn.actor` and `dqn.evaluator` by hand, or let `replaysvc demo` do it.
"""
