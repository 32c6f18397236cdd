"""A real browser on the dashboard of a running demo: every page, and what people do there."""

import re

import pytest
from playwright.sync_api import expect

import replay_client
from replay_client import EpisodeFilter
from tests.browser.chromium import DESK, PHONE, page_of

PAGES = [
    ("overview", "Overview"), ("tables", "Tables"), ("tables/cartpole", "cartpole"), ("tables/cartpole/sampling", "cartpole"),
    ("tables/cartpole/columns", "cartpole"), ("tables/cartpole/configuration", "cartpole"), ("tables/breakout", "breakout"),
    ("episodes/cartpole", "Episodes"), ("episodes/breakout", "Episodes"), ("actors", "Actors"), ("learners", "Learners"),
    ("storage", "Storage"), ("jobs", "Jobs"), ("configuration", "Configuration"), ("log", "Log"),
]  # fmt: skip


def newest(demo, table, *, closed_only=True):
    """Returns the record of the newest episode of a table."""
    with replay_client.connect(demo.address) as replay:
        return replay.table(table).episodes(limit=1, closed_only=closed_only)[0]


def rested(page):
    """Waits until a page has drawn what it asked for."""
    page.wait_for_function("() => document.querySelectorAll('.skeleton, .waiting').length === 0")


def wide(page):
    """Returns by how many pixels the page is wider than its window."""
    return page.evaluate("() => document.scrollingElement.scrollWidth - innerWidth")


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_shows_its_data_without_a_complaint_and_asks_nobody_else(browser, demo, scheme, size):
    with page_of(browser, scheme=scheme, size=size) as (page, heard):
        for place, title in PAGES:
            page.goto(f"{demo.page}#/{place}")
            expect(page.get_by_role("heading", level=1)).to_have_text(title)
            rested(page)
            assert page.locator(".failed").count() == 0, place
            assert wide(page) <= 0, place
        assert heard.errors == []
        assert heard.hosts == {demo.page.split("//")[1].strip("/")}


def test_the_overview_tells_what_the_demo_does(browser, demo):
    with page_of(browser) as (page, heard):
        page.goto(demo.page)
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="cartpole"))
        expect(row).to_contain_text(re.compile(r"[1-9][\d,.]*\ssteps/s"))
        expect(row).to_contain_text(re.compile(r"[1-9][\d,.]*\s?k?\sitems/s"))
        expect(page.get_by_text("Full in").or_(page.get_by_text("Free")).first).to_be_visible()
        assert heard.errors == []


def test_filters_of_episodes_show_what_they_say(browser, demo):
    with replay_client.connect(demo.address) as replay:  # once it has learned, most are cut off at 500 steps
        (record,) = replay.table("cartpole").episodes(limit=1, where=EpisodeFilter(end="terminated"))
    longest = record.length
    with page_of(browser) as (page, heard):
        page.goto(f"{demo.page}#/episodes/cartpole")
        page.get_by_label("Length, least").fill(str(longest))
        page.get_by_label("End").select_option("terminated")
        page.get_by_role("button", name="Apply").click()
        expect(page).to_have_url(re.compile(f"min_length={longest}"))
        rested(page)
        rows = page.get_by_role("table", name="Episodes, the newest first").get_by_role("row")
        expect(rows.nth(1)).to_be_visible()
        lengths = [int(text.split()[0].replace(",", "")) for text in rows.locator("td:nth-child(6)").all_inner_texts()]
        assert lengths
        assert min(lengths) >= longest
        page.get_by_role("textbox", name="Actor").fill("nobody")
        page.get_by_role("button", name="Apply").click()
        expect(page.get_by_text("No episode matches")).to_be_visible()
        assert heard.errors == []


def test_an_atari_episode_is_a_film_with_a_scrubber(browser, demo):
    record = newest(demo, "breakout")
    with page_of(browser) as (page, heard):
        page.goto(f"{demo.page}#/episodes/breakout")
        page.get_by_role("link", name=f"{record.episode_id:,}", exact=True).click()
        expect(page.get_by_role("img", name="observation at step 0")).to_be_visible()
        expect(page.get_by_role("img", name=re.compile("frames spread over the episode"))).to_be_visible()
        first = page.get_by_role("img", name="observation at step 0").get_attribute("src")
        page.get_by_role("slider", name="Step", exact=True).fill(str(record.length // 2))
        middle = page.get_by_role("img", name=f"observation at step {record.length // 2}")
        expect(middle).to_be_visible()
        expect(middle).not_to_have_attribute("src", first)
        assert middle.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [160, 210]
        page.keyboard.press("Escape")
        page.get_by_role("heading", level=1).click()
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("img", name=f"observation at step {record.length // 2 + 1}")).to_be_visible()
        page.keyboard.press("End")
        expect(page.get_by_text("After the last step")).to_be_visible()
        for chart in ("reward", "action"):
            expect(page.get_by_role("heading", name=chart, exact=True)).to_be_visible()
        assert heard.errors == []


def test_an_episode_of_the_demo_shows_its_columns_and_priorities(browser, demo):
    record = newest(demo, "cartpole")
    with page_of(browser) as (page, heard):
        page.goto(f"{demo.page}#/episodes/cartpole/{record.episode_id}")
        for title in ("reward", "action", "observation", "Priorities"):
            expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
        rested(page)
        expect(page.locator("dd", has_text=re.compile(f"^{record.length:,} steps$"))).to_be_visible()
        assert heard.errors == []


def test_the_limiter_is_changed_and_the_page_says_why_a_learner_waits(browser, demo):
    with replay_client.connect(demo.address) as replay:
        table = replay.table("breakout")
        before, steps = table.config.limiter, table.stats().steps
        with page_of(browser) as (page, heard):
            page.goto(f"{demo.page}#/tables/breakout")
            page.get_by_role("button", name="Limiter…").click()
            dialog = page.get_by_role("dialog")
            dialog.get_by_label(re.compile("^Least steps")).fill("50000")
            dialog.get_by_role("button", name="Change the limiter").click()
            expect(dialog).to_have_count(0)
            expect(page.get_by_text(f"{steps:,} of 50,000 steps").first).to_be_visible()
            assert replay.table("breakout").config.limiter.min_steps == 50_000
            page.goto(f"{demo.page}#/overview")
            expect(page.get_by_role("row").filter(has_text="breakout").first).to_contain_text("Sampling waits")
            assert heard.errors == []
        table.set_limiter(before)


def test_an_episode_is_deleted_once_the_name_of_its_table_was_typed(browser, demo):
    with replay_client.connect(demo.address) as replay:
        with replay.table("breakout").writer("to-delete") as writer:
            frame = replay.table("breakout").read_episode(0, 0, 1)["observation"][0]
            writer.begin(frame)
            writer.append(0, 1.0, frame, terminated=True)
        record = newest(demo, "breakout")
        assert record.actor == "to-delete"
        with page_of(browser) as (page, heard):
            page.goto(f"{demo.page}#/episodes/breakout")
            page.get_by_label(f"Choose episode {record.episode_id}", exact=True).check()
            page.get_by_role("button", name="Delete 1…").click()
            dialog = page.get_by_role("dialog")
            go = dialog.get_by_role("button", name="Delete 1 episode")
            expect(go).to_be_disabled()
            dialog.get_by_label("to confirm").fill("break")
            expect(go).to_be_disabled()
            dialog.get_by_label("to confirm").fill("breakout")
            go.click()
            expect(dialog).to_have_count(0)
            expect(page.get_by_label(f"Choose episode {record.episode_id}", exact=True)).to_have_count(0)
            assert heard.errors == []
        assert newest(demo, "breakout").episode_id < record.episode_id


def test_the_page_is_used_by_the_keyboard_alone(browser, demo):
    with page_of(browser) as (page, heard):
        page.goto(demo.page)
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        page.keyboard.press("Tab")
        expect(page.locator("#skip")).to_be_focused()
        page.get_by_role("link", name="Actors").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Actors")
        page.goto(f"{demo.page}#/tables/breakout")
        page.get_by_role("button", name="Capacity…").press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert heard.errors == []
