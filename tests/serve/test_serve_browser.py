"""The page in headless Chromium."""

from __future__ import annotations

import json
import shutil
import time

import pytest

from gain_apps.serve import open_server

selenium = pytest.importorskip("selenium", reason="selenium is not installed")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402

TOKEN = "a-token-of-some-length-0123"


def find(*names: str) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser():
    """Chromium with a log of its requests."""
    binary = find("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    driver = find("chromedriver")
    if binary is None or driver is None:
        pytest.skip("chromium and chromedriver are not both installed")
    options = Options()
    options.binary_location = binary
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # A moving picture never finishes loading.
    options.page_load_strategy = "none"
    chrome = webdriver.Chrome(service=Service(driver), options=options)
    yield chrome
    chrome.quit()


@pytest.fixture
def page(browser, until):
    """Opens a server's page; looks elements up by id."""

    class Page:
        def open(self, server, *, width: int = 1360, height: int = 900) -> None:
            self.emulate(width, height)
            browser.get("about:blank")
            browser.get_log("browser"), browser.get_log("performance")
            browser.get(server.address.url)
            until(lambda: self.run("return document.readyState !== 'loading'"))

        def emulate(self, width: int, height: int) -> None:
            browser.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
            )

        def run(self, script: str):
            return browser.execute_script(script)

        def text(self, name: str) -> str:
            return self.run(f"return document.getElementById('{name}')?.textContent ?? ''")

        def click(self, selector: str) -> None:
            self.run(f"document.querySelector('{selector}').click()")

        def shows(self, name: str, text: str) -> None:
            until(lambda: self.text(name) == text)

        def errors(self) -> list[str]:
            return [
                entry["message"]
                for entry in browser.get_log("browser")
                if entry["level"] in ("SEVERE", "WARNING")
            ]

        def hosts(self) -> set[str]:
            entries = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
            urls = [
                entry["params"]["request"]["url"]
                for entry in entries
                if entry["method"] == "Network.requestWillBeSent"
            ]
            return {url.split("/")[2] for url in urls if url.startswith("http")}

        def picture(self) -> str:
            """The picture's pixels, as the page sees them."""
            return self.run(
                "const image = document.getElementById('picture');"
                "const canvas = document.createElement('canvas');"
                "canvas.width = 64; canvas.height = 48;"
                "canvas.getContext('2d').drawImage(image, 0, 0, 64, 48);"
                "return canvas.toDataURL();"
            )

    shown = Page()
    yield shown
    browser.get("about:blank")


def test_page_loads_without_errors_and_asks_nobody_else(serve, page, stream):
    server = serve()
    page.open(server)
    page.shows("health", "live")
    page.shows("learning", "learning")
    assert page.text("source") == "test://moving"
    assert float(page.text("rate")) == 20.0
    assert page.text("agreement").endswith("%")
    assert page.errors() == []
    assert page.hosts() == {f"127.0.0.1:{server.address.port}"}


def test_picture_moves(serve, page, until):
    page.open(serve())
    until(lambda: page.run("return document.getElementById('picture').naturalWidth > 0"))
    first = page.picture()
    until(lambda: page.picture() != first)
    second = page.picture()
    until(lambda: page.picture() not in (first, second))


def test_figures_and_curves_are_shown(serve, page, until):
    page.open(serve())
    until(lambda: "guard" in page.text("adaptation") and "watching" in page.text("adaptation"))
    until(lambda: page.run("return document.querySelector('.chart path.adapted').getTotalLength()"))
    assert "forward6.00 ms" in page.text("stage-list")
    assert "together7.50 ms" in page.text("stage-list")
    # Labels are text, whatever is in them.
    until(lambda: "<b>cassis</b>" in page.text("classes"))
    assert page.run("return document.querySelectorAll('#classes b').length") == 0
    assert page.errors() == []


def test_buttons_change_the_state(serve, page, stream, until):
    page.open(serve())
    page.shows("learning", "learning")
    page.click("#freeze")
    page.shows("learning", "frozen")
    assert stream.frozen
    page.shows("freeze", "Unfreeze")
    page.click("#freeze")
    page.shows("learning", "learning")
    assert not stream.frozen
    until(lambda: "freeze" in page.text("events") and "learning again" in page.text("events"))


def test_a_guard_that_holds_is_said_at_the_top(serve, page, stream, until):
    page.open(serve())
    page.shows("learning", "learning")
    stream.guard = "holding"
    page.shows("learning", "guard: source answers")
    until(lambda: "guard: watching → holding" in page.text("events"))
    stream.guard = "watching"
    page.shows("learning", "learning")


def test_reset_asks_first(serve, page, stream, until):
    page.open(serve())
    page.shows("learning", "learning")
    page.click("#reset")
    until(lambda: page.run("return document.getElementById('ask').open"))
    page.click("#ask-no")
    until(lambda: not page.run("return document.getElementById('ask').open"))
    page.click("#reset")
    until(lambda: page.run("return document.getElementById('ask').open"))
    page.click("#ask-yes")
    until(lambda: stream.done == ["reset"])


def test_buttons_that_cannot_work_cannot_be_pressed(serve, page):
    page.open(serve(commands=("freeze", "unfreeze", "reset")))
    page.shows("learning", "learning")
    disabled = page.run("return [...document.querySelectorAll('button:disabled')].map((b) => b.id)")
    assert disabled == ["save", "roll-back"]


def test_a_b_view_shows_two_pictures(serve, page, until):
    page.open(serve())
    ratio = (
        "const p = document.getElementById('picture');"
        "return p.naturalHeight ? p.naturalWidth / p.naturalHeight : 0"
    )
    until(lambda: 1.4 < page.run(ratio) < 1.6)
    page.click("#view-side-by-side")
    until(lambda: 2.8 < page.run(ratio) < 3.2)


def test_wrong_token_is_refused_and_the_right_one_opens(serve, page, stream, until):
    server = serve(token=TOKEN)
    page.open(server)
    until(lambda: not page.run("return document.getElementById('login').hidden"))
    assert page.run("return document.getElementById('main').hidden")
    enter = (
        "document.getElementById('token').value = '{}';"
        "document.getElementById('login-form').requestSubmit();"
    )
    page.run(enter.format("not-the-token-at-all"))
    page.shows("login-problem", "That is not the token.")
    assert page.run("return document.getElementById('main').hidden")
    page.run(enter.format(TOKEN))
    page.shows("health", "live")
    until(lambda: page.run("return document.getElementById('picture').naturalWidth > 0"))
    assert page.run("return document.cookie") == ""
    page.click("#freeze")
    until(lambda: stream.frozen)


@pytest.mark.parametrize(("width", "height"), [(320, 640), (390, 844), (768, 1024), (1920, 1080)])
def test_nothing_is_wider_than_the_window(serve, page, until, width, height):
    page.open(serve(), width=width, height=height)
    page.shows("health", "live")
    until(lambda: "watching" in page.text("adaptation"))
    widths = page.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1] == width


def test_page_finds_the_stream_again(serve, page, stream):
    server = serve()
    page.open(server)
    page.shows("health", "live")
    server.close()
    page.shows("health", "offline")
    time.sleep(0.1)
    with open_server(stream.board, stream.info, stream.queue, address=server.address):
        page.shows("health", "live")
