"""Who may see the page and press its buttons: the rules alone."""

from __future__ import annotations

import pytest

from gain_apps.serve.access import Access

TOKEN = "0123456789abcdef-token"
HOST = {"host": "127.0.0.1:8080"}


def access(token: str | None = None) -> Access:
    return Access(token, port=8080, open_paths=frozenset({"/", "/healthz"}))


def status(rules: Access, method: str, path: str, **headers: str) -> int | None:
    named = HOST | {name.replace("_", "-"): value for name, value in headers.items()}
    refusal = rules.refusal(method, path, named)
    return None if refusal is None else refusal.status


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:1", "127.0.0.2:8080", "[::1]:8080", "LOCALHOST:80"]
)
def test_loopback_names_are_answered(host):
    assert status(access(), "GET", "/api/status", host=host) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example:8080", "", "192.168.0.7", "0.0.0.0", "[::]:1", "127.0.0.1.evil.example", "[::1"],
)
def test_other_names_are_refused_without_a_token(host):
    # A name of a foreign site that resolves to 127.0.0.1: DNS rebinding.
    assert status(access(), "GET", "/api/status", host=host) == 403
    assert status(access(), "POST", "/api/commands/reset", host=host) == 403


@pytest.mark.parametrize(
    ("origin", "site", "refused"),
    [
        pytest.param("http://127.0.0.1:8080", "same-origin", False, id="the page itself"),
        pytest.param(None, None, False, id="not a browser"),
        pytest.param("https://evil.example", "cross-site", True, id="another site"),
        pytest.param("https://evil.example", None, True, id="another site, old browser"),
        pytest.param("http://127.0.0.1:9090", "same-site", True, id="another port"),
        pytest.param("null", None, True, id="sandboxed frame"),
        pytest.param("http://[bad", None, True, id="malformed"),
        pytest.param(None, "cross-site", True, id="no origin but foreign"),
    ],
)
@pytest.mark.parametrize("token", [None, TOKEN])
def test_buttons_take_requests_of_the_own_page_only(origin, site, refused, token):
    named = {"authorization": f"Bearer {token}"}
    if origin is not None:
        named["origin"] = origin
    if site is not None:
        named["sec_fetch_site"] = site
    got = status(access(token), "POST", "/api/commands/reset", **named)
    assert got == (403 if refused else None)


def test_other_sites_may_link_but_not_embed():
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert status(access(), "GET", "/", **link) is None
    picture = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}
    assert status(access(), "GET", "/picture.mjpg", **picture) == 403
    assert status(access(), "POST", "/api/commands/reset", **link) == 403


@pytest.mark.parametrize(
    ("authorization", "refused"),
    [
        pytest.param(f"Bearer {TOKEN}", False, id="right"),
        pytest.param(f"bearer  {TOKEN}", False, id="case and spaces"),
        pytest.param(f"Bearer {TOKEN}x", True, id="longer"),
        pytest.param(f"Bearer {TOKEN[:-1]}", True, id="shorter"),
        pytest.param("Bearer ", True, id="empty"),
        pytest.param(f"Basic {TOKEN}", True, id="other scheme"),
        pytest.param("Bearer \udcff\u00e9", True, id="not ASCII"),
    ],
)
def test_token_in_the_header(authorization, refused):
    got = status(access(TOKEN), "GET", "/api/status", authorization=authorization)
    assert got == (401 if refused else None)


@pytest.mark.parametrize("path", ["/api/status", "/picture.jpg", "/metrics", "/api/commands/save"])
def test_everything_else_needs_the_token(path):
    assert status(access(TOKEN), "GET", path) == 401
    assert status(access(TOKEN), "GET", "/") is None
    assert status(access(TOKEN), "GET", "/healthz") is None


def test_cookie_stands_for_the_token_and_is_not_it():
    rules = access(TOKEN)
    value = rules.cookie_value()
    assert TOKEN not in value
    cookie = f"other=1; {rules.cookie_name}={value}"
    assert status(rules, "GET", "/api/status", cookie=cookie) is None
    changed = Access(TOKEN + "2", port=8080, open_paths=frozenset())
    assert status(changed, "GET", "/api/status", cookie=cookie) == 401
    assert status(rules, "GET", "/api/status", cookie=f"{rules.cookie_name}=") == 401
    assert status(rules, "GET", "/api/status", cookie="\x00;=;") == 401


def test_no_cookie_opens_a_stream_without_a_token_to_a_foreign_name():
    rules = access()
    cookie = f"{rules.cookie_name}={rules.cookie_value()}"
    assert status(rules, "GET", "/api/status", host="evil.example", cookie=cookie) == 403


@pytest.mark.parametrize("offered", ["\ud800", "", "é" * 600])
def test_a_token_that_is_no_text_is_wrong(offered):
    assert not access(TOKEN).is_token(offered)
    assert not access(None).is_token(offered)


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"content_length": "4096"}, None),
        ({"content_length": "4097"}, 413),
        ({"content_length": "-1"}, 413),
        ({"content_length": "9" * 400}, 413),
        ({"transfer_encoding": "chunked"}, 411),
    ],
)
def test_bodies_are_small(headers, refused):
    assert status(access(), "POST", "/api/session", **headers) == refused
