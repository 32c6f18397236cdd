"""Fixtures: one browser, one running demo with Atari frames beside it, and services that want tokens."""

import pytest

from tests.browser.chromium import chromium
from tests.browser.feeding import running_demo, write_atari


@pytest.fixture(scope="session")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    with running_demo(tmp_path_factory.mktemp("demo") / "run") as demo:
        write_atari(demo.address)
        yield demo
