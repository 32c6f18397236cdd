"""Read by every Python process of a run in which a guard is switched off: see tests/torture/guards.py."""

import os

if _name := os.environ.get("SWITCHED_OFF"):
    from tests.torture.switches import SWITCHES

    SWITCHES[_name]()
