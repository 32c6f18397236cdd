"""Requests on behalf of other sites, by other names, of other methods, and too large: refused on every path."""

import pytest

from replaysvc.admin import answers, guard
from tests.admin.browser import Browser, rest
from tests.waiting import wait_until

PATHS = ["/", "/static/app.js", "/livez", "/readyz", "/metrics", "/api/v1/session", "/api/v1/overview", "/nowhere"]
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW"]
REBOUND = [
    "evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.nip.io", "127.0.0.1.", "localhost.", "127.1",
    "2130706433", "0x7f.0.0.1", "user@localhost", "localhost:port", "localhost:", "[::1", "::1", "", " ",
    "localhost, evil.example",
]  # fmt: skip


EVERYWHERE = [(method, path) for method in METHODS for path in PATHS]


def test_name_of_a_stranger_is_refused_on_every_path_and_method(browser):
    for method, path in EVERYWHERE:
        answer = browser.request(method, path, host="evil.example")
        assert answer.status == 400, (method, path)
        if method != "HEAD":
            assert answer.json == {
                "error": "InvalidRequestError",
                "message": "host: expected localhost, an IP address or a name in the setting admin_names, found another",
            }


def test_names_that_are_neither_localhost_nor_an_address_are_refused(browser):
    for host in REBOUND:
        assert browser.request("GET", "/livez", host=host).status == 400, host


def test_absent_and_doubled_names_are_refused(browser):
    assert browser.request("GET", "/livez", [("Host", "localhost")]).status == 400
    with browser.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert rest(connection).startswith(b"HTTP/1.1 400 ")


def test_localhost_and_addresses_are_known(browser):
    for host in ("localhost", "LocalHost:9", "127.0.0.1", "127.0.0.1:65535", "[::1]", "[::1]:80", "10.0.0.7:9090"):
        assert browser.request("GET", "/livez", host=host).status == 200, host


def test_names_in_the_setting_are_known_and_no_others(open_door):
    browser = Browser(open_door(names=frozenset({"replay.example.org"})).port)
    assert browser.request("GET", "/livez", host="Replay.Example.org:8080").status == 200
    assert browser.request("GET", "/livez", host="other.example.org").status == 400
    assert browser.request("GET", "/livez", host="replay.example.org.evil.example").status == 400


@pytest.mark.parametrize(
    "header", [("Origin", "http://evil.example"), ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Site", "same-site")], ids=str
)
def test_request_on_behalf_of_another_site_is_refused_on_every_path_and_method(browser, header):
    for method, path in EVERYWHERE:
        assert browser.request(method, path, [header]).status == 403, (method, path)


def test_other_origins_are_refused(browser):
    for origin in ("null", "http://127.0.0.1:1", "http://localhost", "https://evil.example", "", "127.0.0.1:8"):
        assert browser.request("GET", "/api/v1/session", [("Origin", origin)], host="127.0.0.1:8").status == 403, origin


def test_own_origin_and_own_requests_are_let_in(browser):
    for headers in (
        [("Origin", "http://127.0.0.1:8"), ("Sec-Fetch-Site", "same-origin")],
        [("Origin", "https://127.0.0.1:8")],  # behind a proxy that ends TLS
        [("Sec-Fetch-Site", "none")],
        [],
    ):
        assert browser.request("GET", "/api/v1/session", headers, host="127.0.0.1:8").status == 200, headers


def test_link_from_elsewhere_leads_to_the_page_and_to_nothing_else(browser):
    link = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")]
    assert browser.request("GET", "/", link).status == 200
    for method, path in [("POST", "/"), ("GET", "/api/v1/session"), ("GET", "/metrics"), ("GET", "/static/app.js")]:
        assert browser.request(method, path, link).status == 403, path
    frame = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "iframe")]
    assert browser.request("GET", "/", frame).status == 403


def test_other_methods_are_refused(browser):
    for method, path in EVERYWHERE:
        if method not in ("GET", "HEAD", "POST"):
            answer = browser.request(method, path)
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, POST"), (method, path)


def test_method_of_another_route_is_refused(browser):
    answer = browser.post("/api/v1/overview", {})
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    answer = browser.get("/api/v1/scrub")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert answer.json["error"] == "InvalidRequestError"
    assert browser.request("HEAD", "/api/v1/scrub").status == 405


def test_head_is_answered_as_get_without_the_body(browser):
    for path in (*PATHS, "/api/v1/openapi.json", "/static/plotly.min.js"):
        asked, told = browser.get(path), browser.request("HEAD", path)
        assert told.status == asked.status, path
        assert told.body == b""
        same = "content-type", "content-security-policy", "cache-control", "etag"
        assert [told.headers[name] for name in same] == [asked.headers[name] for name in same], path
        if path != "/api/v1/overview":  # which has a time in it
            assert told.headers["content-length"] == str(len(asked.body)), path


def test_next_request_of_a_connection_is_answered_after_a_head(browser):
    head, get = (b"%s /livez HTTP/1.1\r\nHost: localhost\r\n" % method for method in (b"HEAD", b"GET"))
    with browser.connect() as connection:
        connection.sendall(head + b"\r\n" + get + b"Connection: close\r\n\r\n")
        first, _, second = rest(connection).partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 200 ")
    assert second.startswith(b"HTTP/1.1 200 ")
    assert second.endswith(b'{"status":"ok"}')


def test_head_is_guarded_as_get_is(browser, secured):
    assert browser.request("HEAD", "/livez", host="evil.example").status == 400
    assert browser.request("HEAD", "/livez", [("Sec-Fetch-Site", "cross-site")]).status == 403
    assert browser.request("HEAD", "/livez", [], b"{}").status == 400
    assert Browser(secured.port).request("HEAD", "/api/v1/overview").status == 401


def test_pages_that_do_not_exist_are_not_found(browser):
    for path in (
        "/api", "/api/v1", "/api/v1/", "/api/v1/overview/", "/docs", "/redoc", "/openapi.json", "/favicon.ico", "//", "/%2e%2e",
    ):  # fmt: skip
        answer = browser.get(path)
        assert (answer.status, answer.json["error"]) == (404, "NotFoundError"), path


def test_target_that_is_no_path_is_refused(browser):
    assert browser.request("GET", "http://127.0.0.1/livez").status == 400


JSON = ("Content-Type", "application/json")


BODIES = [
    ([], b"{}", 415),
    ([("Content-Type", "text/plain")], b"{}", 415),
    ([("Content-Type", "application/x-www-form-urlencoded")], b"confirm=scrub", 415),
    ([("Content-Type", "multipart/form-data; boundary=x")], b"{}", 415),
    ([JSON, JSON], b"{}", 415),
    ([JSON], None, 411),
    ([JSON, ("Transfer-Encoding", "chunked")], None, 411),
    ([JSON, ("Content-Length", str((256 << 10) + 1))], None, 413),
    ([JSON], b"", 400),
    ([JSON], b"{", 400),
    ([JSON], b"\xff\xfe", 400),
    ([JSON], b"[]", 400),
    ([JSON], b"null", 400),
    ([JSON], b'{"confirm": NaN}', 400),
    ([JSON], b'{"confirm": "scrub", "confirm": "scrub"}', 400),
    ([JSON], b"[" * 100_000, 400),
    ([JSON], b'{"confirm": "scrub", "more": 1}', 400),
]


def test_body_of_another_kind_or_size_is_refused(browser):
    for headers, body, status in BODIES:
        answer = browser.request("POST", "/api/v1/scrub", headers, body)
        assert (answer.status, answer.json["error"]) == (status, "InvalidRequestError"), (headers, body)


def test_body_of_the_largest_size_is_read(browser):
    filler = b" " * (guard.BODY_BYTES - len(b'{"confirm": "x"}'))
    answer = browser.request("POST", "/api/v1/scrub", [JSON], b'{"confirm": "x"}' + filler)
    assert "confirm: expected 'scrub'" in answer.json["message"]


def test_body_of_a_get_is_refused(browser):
    assert browser.request("GET", "/api/v1/session", [], b"{}").status == 400


NO_HTTP = [
    (b"nonsense\r\n\r\n", 400),
    (b"GET / FTP/1.0\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # who speaks TLS
    (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 431),
    (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000, 431),
]


def test_what_is_no_http_is_answered_and_cut_off(browser):
    for sent, status in NO_HTTP:
        with browser.connect() as connection:
            connection.sendall(sent)
            answer = rest(connection)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status), sent[:100]
        assert b"content-security-policy: " in head.lower()
        assert body.startswith(b'{"error":"InvalidRequestError"')


def test_every_answer_has_the_headers_that_guard_it(browser, secured, open_door):
    answers_ = [browser.get(path) for path in PATHS]
    answers_ += [browser.request("GET", "/", host="evil.example"), browser.request("PUT", "/")]
    answers_ += [browser.get("/", Origin="http://evil.example"), Browser(secured.port).get("/api/v1/overview")]
    answers_ += [browser.post("/api/v1/scrub", {}), browser.request("POST", "/api/v1/scrub", [], b"{}")]
    assert {answer.status for answer in answers_} == {200, 400, 401, 403, 404, 405, 415}
    for answer in answers_:
        for name, value in answers.GUARDS:
            assert answer.headers.get_all(name.decode()) == [value.decode()], (answer.status, name)
        assert answer.headers["cache-control"] in ("no-store", "no-cache")
        assert len(answer.headers["x-request-id"]) == 12
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
        assert "server" not in answer.headers
    assert "unsafe-inline" not in answers.POLICY.partition("style-src")[0]


def test_failure_that_nobody_foresaw_is_told_without_its_inside(open_door, caplog):
    def fail():
        raise RuntimeError("inner secret")

    class Broken:
        render = staticmethod(fail)

    answer = Browser(open_door(metrics=Broken()).port).get("/metrics")
    assert (answer.status, answer.json["error"]) == (500, "ReplayError")
    assert "inner secret" not in answer.body.decode()
    asked = answer.headers["x-request-id"]
    assert answer.json["message"] == f"the service failed (RuntimeError); its log has the cause, at request {asked}"
    assert answer.headers["content-security-policy"] == answers.POLICY
    wait_until(lambda: "inner secret" in caplog.text)  # which is written after the answer
    assert [record.name for record in caplog.records if record.exc_info] == ["replaysvc.admin.guard"]
