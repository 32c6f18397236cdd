import pytest

from replaysvc.replay import Replay


@pytest.fixture(params=["embedded"])
def door(request, tmp_path):
    with Replay(tmp_path / "store") as replay:
        yield replay
