"""The real-data comparison in small; `tests/real_data.py` runs it at any size."""

from rich.console import Console

from tests.real_data import run


def test_real_episodes_come_back_as_they_were_also_after_kills(tmp_path):
    differences = run(tmp_path, episodes=1, kills=2, seed=7, steps=300, console=Console(quiet=True))
    assert differences.found == []
    assert differences.compared > 1000
