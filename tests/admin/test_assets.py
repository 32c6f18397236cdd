"""The files of the dashboard, and that no other file is one of them."""

import gzip
import importlib.util
import json
import re

import pytest

from replaysvc.admin.assets import PLOTLY, Assets
from replaysvc.errors import NotFoundError
from tests.admin.browser import Browser

OUTSIDE = [
    "/static/../__init__.py", "/static/..%2f__init__.py", "/static/%2e%2e/__init__.py", "/static/%2e%2e%2f__init__.py",
    "/static//etc/passwd", "/static/%2fetc%2fpasswd", "/static/..", "/static/.", "/static/", "/static/pages", "/static/pages/",
    "/static/pages/../../app.py", "/static/app.js/", "/static/APP.JS", "/static/app.js%00", "/static/%00", "/static/app.js%0a",
    "/static/plotly.min.js.map", "/static/..%5capp.py", "/static/%ff", "/static", "/static/index.html/..%2f..%2fapp.py",
]  # fmt: skip


def test_page_is_served(browser):
    answer = browser.get("/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.body.lstrip().lower().startswith(b"<!doctype html>")


def test_every_file_is_served_with_its_type(browser):
    types = {
        "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml",
        "html": "text/html; charset=utf-8",
    }  # fmt: skip
    names = Assets().names
    assert {"app.js", "app.css", "index.html", "icon.svg", PLOTLY} <= set(names)
    assert any(name.startswith("pages/") for name in names)
    for name in names:
        answer = browser.get(f"/static/{name}")
        assert (answer.status, answer.headers["content-type"]) == (200, types[name.rpartition(".")[2]]), name


def test_nothing_outside_of_the_folder_is_served(browser):
    for path in OUTSIDE:
        answer = browser.get(path)
        unprintable = any(code in path for code in ("%00", "%0a"))
        expected = (400, "InvalidRequestError") if unprintable else (404, "NotFoundError")
        assert (answer.status, answer.json["error"]) == expected, path


def test_files_come_compressed_for_whoever_takes_that(browser):
    plain = browser.get("/static/app.js")
    assert "content-encoding" not in plain.headers
    packed = browser.get("/static/app.js", Accept_Encoding="br, gzip;q=0.5")
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body)


def test_who_has_a_file_is_told_that_it_did_not_change(browser):
    tag = browser.get("/static/app.js").headers["etag"]
    for given in (tag, f"W/{tag}", f'"other", {tag}'):
        answer = browser.get("/static/app.js", If_None_Match=given)
        assert (answer.status, answer.body) == (304, b"")
    assert browser.get("/static/app.js", If_None_Match='"other"').status == 200


def test_only_files_of_known_kinds_and_no_links_are_assets(tmp_path):
    folder = tmp_path / "static"
    (folder / "pages").mkdir(parents=True)
    for name in ("index.html", "pages/a.js", "secret.pem", "notes.md", ".hidden"):
        (folder / name).write_text("x")
    (tmp_path / "outside.js").write_text("secret")
    (folder / "link.js").symlink_to(tmp_path / "outside.js")
    assets = Assets(folder)
    assert set(assets.names) - {PLOTLY} == {"index.html", "pages/a.js"}
    with pytest.raises(NotFoundError):
        assets.get("link.js")


def test_a_file_that_changes_is_still_the_one_that_was_read_first(tmp_path):
    (tmp_path / "a.js").write_text("one")
    assets = Assets(tmp_path)
    assert assets.get("a.js").body == b"one"
    (tmp_path / "a.js").write_text("two")
    assert assets.get("a.js").body == b"one"


def test_charts_are_there_only_if_their_package_is(tmp_path, monkeypatch):
    assert PLOTLY in Assets(tmp_path).names
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert Assets(tmp_path).names == []


def test_page_loads_nothing_from_elsewhere_and_has_no_code_of_its_own():
    assets = Assets()
    page = assets.get("index.html").body.decode()
    assert re.findall(r"""(?:src|href|action)\s*=\s*["']?(?:https?:)?//""", page) == []
    assert re.findall(r"<script(?![^>]*\ssrc=)[^>]*>", page) == []
    assert re.findall(r"\son\w+\s*=", page) == []


def test_page_names_files_that_are_there(browser):
    page = browser.get("/").body.decode()
    named = re.findall(r'(?:src|href)="(?:/?static/)([^"]+)"', page)
    assert named
    for name in named:
        assert browser.get(f"/static/{name}").status == 200, name


def test_public_files_need_no_token_and_hold_no_names(secured, replay):
    browser = Browser(secured.port)
    assert browser.get("/").status == 200
    assert json.loads(browser.get("/livez").body) == {"status": "ok"}
