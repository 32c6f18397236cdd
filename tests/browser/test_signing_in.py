"""A real browser on services that want a token, that go away, and that hold names which are made to hurt."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

import replay_client
from replay_client import FieldSpec, Signature
from replaysvc.access import Role, append_token, new_token
from tests.browser.chromium import page_of
from tests.processes import ServiceProcess

HOSTILE = "<img src=x onerror=alert(1)>"
LINK = '<a href="javascript:alert(2)">click & $x^2$ %{y}'


@pytest.fixture
def guarded(tmp_path):
    """A service with a token of each role, by role, and a table in which every name is hostile."""
    tokens, secrets = tmp_path / "tokens.toml", {}
    for role in Role:
        secrets[role], lines = new_token(f"the-{role}", role)
        append_token(tokens, lines)
    with ServiceProcess(tmp_path / "store", "--tokens-file", str(tokens), "--admin-port", "0") as service:
        signature = Signature(
            {HOSTILE: FieldSpec(HOSTILE, (2,), np.float32), "image": FieldSpec("image", (8, 8), np.uint8)},
            FieldSpec("action", (), np.int64), extra={LINK: FieldSpec(LINK, (), np.float32)},
        )  # fmt: skip
        with replay_client.connect(service.address, token=secrets[Role.ADMIN]) as replay:
            table = replay.create_table("t", signature)
            with table.writer(HOSTILE) as writer:
                seen = {HOSTILE: np.zeros(2, np.float32), "image": np.zeros((8, 8), np.uint8)}
                writer.begin(seen, metadata={HOSTILE: LINK, "nested": {LINK: [HOSTILE]}})
                for t in range(6):
                    writer.append(t, float(t), seen, terminated=t == 5, extras={"extra": {LINK: 0.5}})
            table.sample(4)
        yield service, secrets


def sign_in(page, secret):
    page.get_by_label("Token").fill(secret)
    page.get_by_role("button", name="Sign in").click()


def test_a_wrong_token_is_refused_and_said_so(browser, guarded):
    service, secrets = guarded
    with page_of(browser) as (page, heard):
        page.goto(service.dashboard)
        sign_in(page, "wrong")
        expect(page.get_by_role("alert")).to_contain_text("not known to the service")
        sign_in(page, secrets[Role.WRITER])
        expect(page.get_by_text("Not for your role")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        sign_in(page, secrets[Role.ADMIN])
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        # the browser itself notes each refused answer
        assert all(re.search("40[13]", error) for error in heard.errors), heard.errors
        page.reload()
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        page.reload()
        expect(page.get_by_label("Token")).to_be_visible()


def test_who_may_only_look_finds_no_actions(browser, guarded):
    service, secrets = guarded
    with page_of(browser) as (page, _):
        page.goto(f"{service.dashboard}#/tables/t")
        sign_in(page, secrets[Role.VIEWER])
        expect(page.get_by_role("heading", level=1)).to_have_text("t")
        expect(page.get_by_role("link", name="Episodes").first).to_be_visible()
        expect(page.get_by_text("…")).to_have_count(0)
        expect(page.get_by_role("link", name="Log")).to_have_count(0)
        page.goto(f"{service.dashboard}#/configuration")
        expect(page.get_by_text("For admins")).to_be_visible()


def test_names_that_are_made_to_hurt_show_as_text_on_every_page(browser, guarded):
    service, secrets = guarded
    with page_of(browser) as (page, heard):
        page.goto(service.dashboard)
        sign_in(page, secrets[Role.ADMIN])
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        del heard.errors[:]  # that the first look was refused
        shown = set()
        for place in (
            "overview", "tables/t", "tables/t/sampling", "tables/t/columns", "tables/t/configuration", "episodes/t",
            "episodes/t/0", "actors", "learners", "storage", "jobs", "configuration", "log", f"episodes/t?actor={HOSTILE}",
            f"tables/{HOSTILE}", f"episodes/{HOSTILE}/{HOSTILE}", f"{HOSTILE}",
        ):  # fmt: skip
            page.goto(f"{service.dashboard}#/{place}")
            page.wait_for_timeout(700)
            text = page.inner_text("body")
            shown |= {name for name in (HOSTILE, LINK) if name in text}
            assert page.locator("img[src=x]").count() == 0, place
            assert page.locator("a[href^=javascript]").count() == 0, place
        assert shown == {HOSTILE, LINK}
        assert [error for error in heard.errors if not re.search("40[04]", error)] == []


def test_a_service_that_goes_and_comes_back_is_told_of_and_the_last_data_stay(browser, guarded):
    service, secrets = guarded
    with page_of(browser, timeout_s=40) as (page, _):
        page.goto(f"{service.dashboard}#/tables/t")
        sign_in(page, secrets[Role.ADMIN])
        expect(page.get_by_role("heading", name="Limiter")).to_be_visible()
        service.kill()
        expect(page.get_by_role("alert")).to_contain_text("What you see was read")
        expect(page.get_by_role("heading", name="Limiter")).to_be_visible()
