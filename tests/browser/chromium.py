"""Debian's chromium, driven by Playwright: pages that must not complain, and must ask nobody but the service."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
DESK, PHONE = (1440, 900), (390, 844)
expect.set_options(timeout=20_000)  # a page asks every 2 s, and a busy machine answers later


@dataclass(slots=True)
class Heard:
    """What a page said and asked for. errors: of its console and of uncaught exceptions; hosts: that it asked."""

    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    paths: list[str] = field(default_factory=list)

    def listen(self, page: Page) -> None:
        """Notes all that `page` does from now on."""
        page.on("console", lambda message: self.errors.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: (self.errors.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self._note(request.url))

    def _note(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob", "about"):
            self.hosts.add(parts.netloc)
            self.paths.append(parts.path)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Gives a browser without a window. Fails if there is none: Debian's package is `chromium`."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found is not None, f"no browser: expected one of {', '.join(NAMES)} (Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextlib.contextmanager
def page_of(
    browser: Browser, *, size: tuple[int, int] = DESK, scheme: str = "light", timeout_s: float = 30.0, **options: Any
) -> Iterator[tuple[Page, Heard]]:
    """Gives a fresh page, with nothing remembered, and what it says."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce", **options
    )
    context.set_default_timeout(timeout_s * 1e3)
    page, heard = context.new_page(), Heard()
    heard.listen(page)
    try:
        yield page, heard
    finally:
        context.close()
