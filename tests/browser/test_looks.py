"""A real browser on how the dashboard is laid out, at several widths, and on charts that nobody sees yet."""

import numpy as np
import pytest
from playwright.sync_api import expect

import replay_client
from replay_client import FieldSpec, Signature, TableConfig, Uniform
from tests.browser.chromium import page_of
from tests.browser.test_dashboard import PAGES, newest, rested

_OUT = """() => {
  const out = [];
  const root = document.scrollingElement;
  if (root.scrollWidth > root.clientWidth) out.push(`the page, by ${root.scrollWidth - root.clientWidth}`);
  for (const node of document.querySelectorAll(".scroller, .tabs")) {
    if (node.scrollWidth > node.clientWidth + 1) out.push(`a ${node.className}, by ${node.scrollWidth - node.clientWidth}`);
  }
  const range = document.createRange();
  for (const place of document.querySelectorAll(".card, .tile, .verdict, .rows th, .rows td, .pairs > div")) {
    const { left, right } = place.getBoundingClientRect();
    const texts = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode;
      if (!text.data.trim() || text.parentElement.closest(".hidden, .note, thead, .chart, .lines, pre, option")) continue;
      range.selectNodeContents(text);
      const rects = [...range.getClientRects()].filter((rect) => rect.width > 0);
      const by = Math.max(...rects.map((rect) => Math.max(rect.right - right, left - rect.left)));
      if (by > 1) out.push(`${JSON.stringify(text.data.slice(0, 40))} of a ${place.className || place.tagName}, by ${by}`);
    }
  }
  return out;
}"""
"""Gives what is wider than its place: the page, tables in their cards, text in cards and cells."""

_LAST_TIMES = """() => [...document.querySelectorAll(".chart.drawn .plot")].map((plot) => {
  const x = plot.data?.[0]?.x ?? [];
  return String(x[x.length - 1]);
})"""
"""Gives the newest time of each chart, as it is drawn."""


def _write(table, actor, steps=20):
    with table.writer(actor) as writer:
        writer.begin(np.zeros(4, np.float32))
        for t in range(steps):
            writer.append(0, 1.0, np.full(4, t, np.float32), truncated=t == steps - 1)


PLAIN = Signature(FieldSpec("observation", (4,), np.float32), FieldSpec("action", (), np.int64))


@pytest.fixture(scope="module")
def wide_names(demo):
    """A table, an actor and a learner with rather long names and sentences."""
    with replay_client.connect(demo.address) as replay:
        table = replay.create_table("half-cheetah-medium", PLAIN, TableConfig(capacity_steps=1000))
        _write(table, "actor-17.rollouts.training.example.org:51234")
        table.sample(8)


@pytest.mark.parametrize("width", [1024, 1280, 1440, 390])
@pytest.mark.usefixtures("wide_names")
def test_nothing_is_wider_than_its_place(browser, demo, width):
    places = [place for place, _ in PAGES] + [
        f"episodes/{table}/{newest(demo, table).episode_id}" for table in ("cartpole", "breakout")
    ]
    with page_of(browser, size=(width, 900)) as (page, heard):
        for place in [*places, "tables/cartpole/sampling?sampler=prioritized"]:
            page.goto(f"{demo.page}#/{place}")
            rested(page)
            expect(page.locator("main .card, main .verdict").first).to_be_visible()
            assert page.evaluate(_OUT) == [], place
        assert heard.errors == []


@pytest.mark.usefixtures("wide_names")
def test_an_episode_says_that_nobody_uses_the_prioritized_sampler_yet(browser, demo):
    with page_of(browser) as (page, heard):
        page.goto(f"{demo.page}#/episodes/half-cheetah-medium/0")
        card = page.locator(".card", has=page.get_by_role("heading", name="Priorities", exact=True))
        expect(card).to_contain_text("The prioritized sampler prioritized is there, but nobody has drawn from it")
        expect(card).to_contain_text('table.sample(…, sampler="prioritized")')
        assert heard.errors == []


def test_an_episode_of_a_table_without_a_prioritized_sampler_says_so(browser, demo):
    with replay_client.connect(demo.address) as replay:
        config = TableConfig(capacity_steps=1000, samplers={"uniform": Uniform()})
        _write(replay.create_table("alike", PLAIN, config), "actor")
    with page_of(browser) as (page, heard):
        page.goto(f"{demo.page}#/episodes/alike/0")
        card = page.locator(".card", has=page.get_by_role("heading", name="Priorities", exact=True))
        expect(card).to_contain_text("This table was made without one")
        assert heard.errors == []


def _hidden_and_old(page, demo):
    """Opens the overview and waits until the first chart was drawn anew, but not the last one, which is below the fold.

    Returns the newest time of the last chart, as it is drawn.
    """
    page.goto(demo.page)
    page.wait_for_function("() => document.querySelectorAll('.chart.drawn').length >= 5")
    page.wait_for_function("() => !document.querySelector('.chart:not(.drawn)')")
    page.wait_for_function(f"() => {{ const at = ({_LAST_TIMES})(); return at[0] > at[at.length - 1]; }}")
    return page.evaluate(_LAST_TIMES)[-1]


def test_a_chart_below_the_fold_is_drawn_again_once_it_is_scrolled_to(browser, demo):
    with page_of(browser, size=(1280, 700)) as (page, heard):
        old = _hidden_and_old(page, demo)
        page.route("**/api/**", lambda route: None)
        with page.expect_request("**/api/**"):
            pass  # one that is never answered: nothing but the scroll makes the page draw again
        page.locator(".chart").last.scroll_into_view_if_needed()
        page.wait_for_function(f"old => ({_LAST_TIMES})().at(-1) > old", arg=old)
        assert heard.errors == []


def test_printing_draws_the_charts_that_nobody_saw(browser, demo):
    with page_of(browser, size=(1280, 700)) as (page, heard):
        old = _hidden_and_old(page, demo)
        page.pdf()
        assert page.evaluate(_LAST_TIMES)[-1] > old
        assert heard.errors == []


def test_the_rule_for_stale_actors_stands_below_them(browser, demo):
    rule = "An actor is stale when its policy is old."
    with page_of(browser) as (page, heard):

        def told(route):
            answer = route.fetch()
            route.fulfill(response=answer, json=answer.json() | {"stale_rule": rule})

        page.route("**/api/v1/actors*", told)
        page.goto(f"{demo.page}#/actors")
        expect(page.get_by_role("paragraph").filter(has_text=rule)).to_be_visible()
        expect(page.get_by_role("columnheader", name="State")).to_have_attribute("title", rule)
        assert heard.errors == []
