"""Processes of a run end when they are told to, however often and at whatever moment."""

import subprocess
import sys

SCRIPT = """
import os, signal
from dqn.task import stop_on_signals
stop = stop_on_signals()
real = stop._cond.notify_all
def interrupted():  # as if the next signal came while the first is told
    stop._cond.notify_all = real
    os.kill(os.getpid(), signal.SIGTERM)
    real()
stop._cond.notify_all = interrupted
with stop._cond:  # as if the thread stood within `stop.wait`
    os.kill(os.getpid(), signal.SIGTERM)
print(stop.wait(30), flush=True)
"""


def test_a_signal_that_comes_while_another_is_told_or_while_the_event_is_waited_for_blocks_nothing():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
