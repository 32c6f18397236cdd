"""The modules of the page that need no service, by tests of their own, within the page that the service serves."""

from pathlib import Path

from tests.browser.chromium import page_of
from tests.processes import ServiceProcess

RUN = """async (name) => {
  try { await (await import("/static/module_tests.js")).tests[name](); return ""; } catch (error) { return String(error); }
}"""
SOURCE = Path(__file__).with_name("module_tests.js")


def test_modules_of_the_page_pass_their_own_tests(browser, tmp_path):
    with ServiceProcess(tmp_path / "store", "--admin-port", "0") as service, page_of(browser) as (page, _):
        answer = {"content_type": "text/javascript", "body": SOURCE.read_text()}
        page.route("**/static/module_tests.js", lambda route: route.fulfill(**answer))
        page.goto(service.dashboard)
        names = page.evaluate("async () => Object.keys((await import('/static/module_tests.js')).tests)")
        assert len(names) == SOURCE.read_text().count('\n  "')
        assert {name: said for name in names if (said := page.evaluate(RUN, name))} == {}
