"""Fixtures: one browser, one running demo with Atari frames beside it, and services that want tokens."""

import pytest

import replay_client
from tests.browser.chromium import chromium
from tests.browser.feeding import running_demo, write_atari
from tests.waiting import wait_until


@pytest.fixture(scope="session")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    with running_demo(tmp_path_factory.mktemp("demo") / "run") as demo:
        write_atari(demo.address)
        with replay_client.connect(demo.address) as replay:  # until actors have written and the learner has learned
            wait_until(lambda: "cartpole" in replay.tables(), 120)
            wait_until(lambda: replay.table("cartpole").stats().priority_updates_total > 0, 120)
        yield demo
