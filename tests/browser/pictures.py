"""Takes the pictures of the README: the dashboard of a running demo, with Atari frames beside it.

    python -m tests.browser.pictures [--seconds 45] [--all DIR]

Writes overview.png, episode.png and phone.png beside this file. `--all` writes every page into DIR, light, dark and as a
phone has it, to be looked at.
"""

import argparse
import contextlib
import tempfile
from pathlib import Path

from rich.console import Console

from tests.browser.chromium import DESK, PHONE, chromium, page_of
from tests.browser.feeding import running_demo, write_atari

HERE = Path(__file__).parent / "pictures"
PLACES = (
    "overview", "tables", "tables/cartpole", "tables/cartpole/sampling?sampler=prioritized", "tables/cartpole/columns",
    "tables/cartpole/configuration", "episodes/cartpole", "episodes/cartpole/5", "episodes/breakout",
    "episodes/breakout/1?t=60", "actors", "learners", "storage", "jobs", "configuration", "log",
)  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=45.0, help="for which the demo runs before")
    options.add_argument("--all", type=Path, help="directory for every page")
    given = options.parse_args()
    HERE.mkdir(exist_ok=True)
    console = Console(stderr=True)
    every = given.all.resolve() if given.all is not None else None
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        Path("runs").mkdir()
        demo, browser = stack.enter_context(running_demo(Path("runs/demo"))), stack.enter_context(chromium())
        write_atari(demo.address)

        def take(place: str, path: Path, *, full: bool = False, **look: object) -> None:
            with console.status(f"{place}"), page_of(browser, **look) as (page, heard):
                page.goto(f"{demo.page}#/{place}")
                page.wait_for_timeout(4000)
                page.screenshot(path=path, full_page=full)
                console.print(path.name, *heard.errors)

        with page_of(browser) as (page, _):
            page.goto(demo.page)
            page.wait_for_timeout(given.seconds * 1e3)
        take("overview", HERE / "overview.png", size=(1280, 900))
        take("episodes/breakout/1?t=60", HERE / "episode.png", size=(1280, 900), scheme="dark")
        take("tables/cartpole/sampling?sampler=prioritized", HERE / "phone.png", size=PHONE)
        if every is not None:
            every.mkdir(exist_ok=True)
            for name, look in (
                ("light", {"size": DESK}), ("dark", {"size": DESK, "scheme": "dark"}), ("phone", {"size": PHONE}),
            ):  # fmt: skip
                for place in PLACES:
                    take(place, every / f"{name}-{place.partition('?')[0].replace('/', '-')}.png", full=True, **look)


if __name__ == "__main__":
    main()
