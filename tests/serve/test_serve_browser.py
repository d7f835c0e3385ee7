"""The page in headless Chromium."""

from __future__ import annotations

import json
import shutil

import pytest

from gain_apps.serve import open_server
from gain_runtime.sources.reconnecting import Connection

selenium = pytest.importorskip("selenium", reason="selenium is not installed")

from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import WebDriverException  # noqa: E402
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

TOKEN = "a-token-of-some-length-0123"
LEAST_CONTRAST = 4.5
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# The contrast of every piece of text with what lies behind it, by WCAG 2; disabled ones are exempt.
CONTRASTS = """
const channels = (text) => {
  const found = text.match(/[\\d.]+/g).map(Number);
  // color(srgb r g b / a) has shares, rgb(r, g, b, a) has bytes.
  return text.startsWith("color") ? found.map((x, i) => i < 3 ? 255 * x : x) : found;
};
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((byte) => byte / 255)
    .map((share) => share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = channels(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] > 0.5) return colour;
  }
  return [255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  const text = walker.currentNode.textContent.trim();
  const seen = element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  if (!text || !seen) continue;
  if (element.closest("button:disabled, #veil, script, noscript")) continue;
  const [a, b] = [light(channels(getComputedStyle(element).color)), light(behind(element))];
  found.push([text, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
}
return found;
"""
# Whether a page shows what it asked for, and not only the words it always has.
DRAWN = {
    "#/": "return document.querySelectorAll('#cameras tbody tr').length === 50",
    "#/camera/yard": (
        "return ['#classes tr', '#adaptation dd', '.chart path[d]']"
        ".every((one) => document.querySelector(one))"
    ),
    "#/events": "return document.querySelectorAll('#all-events li').length > 0",
}


def find(*names: str) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium with a log of its requests."""
    binary = find("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    driver = find("chromedriver")
    if binary is None or driver is None:
        pytest.skip("chromium and chromedriver are not both installed")
    options = Options()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.page_load_strategy = "none"
    chrome = webdriver.Chrome(service=Service(driver), options=options)
    yield chrome
    chrome.quit()


@pytest.fixture
def page(browser, until):
    """Opens a server's page; looks elements up by id."""

    class Page:
        def open(self, server, *, at: str = "#/camera/yard", width: int = 1360, height: int = 900):
            self.emulate(width, height)
            browser.get("about:blank")
            browser.get_log("browser"), browser.get_log("performance")
            browser.get(server.address.url + at)
            # Not the empty page before it; and its scripts, which are modules, have run.
            until(lambda: self.has_begun(server.address.url))

        def has_begun(self, url: str) -> bool:
            try:
                return self.run(
                    f"return location.href.startsWith('{url}') && "
                    "performance.getEntriesByType('navigation')[0]?.domContentLoadedEventEnd > 0"
                )
            except WebDriverException:  # The one page gives way to the other meanwhile.
                return False

        def emulate(self, width: int, height: int) -> None:
            browser.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
            )

        def scheme(self, name: str) -> None:
            browser.execute_cdp_cmd(
                "Emulation.setEmulatedMedia",
                {"features": [{"name": "prefers-color-scheme", "value": name}]},
            )

        def run(self, script: str):
            return browser.execute_script(script)

        def text(self, name: str) -> str:
            return self.run(f"return document.getElementById('{name}')?.textContent ?? ''")

        def click(self, selector: str) -> None:
            self.run(f"document.querySelector('{selector}').click()")

        def press(self, *keys: str) -> None:
            ActionChains(browser).send_keys(*keys).perform()

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

        def names(self) -> list[str]:
            return self.run(
                "return [...document.querySelectorAll('#cameras tbody tr')]"
                ".map((row) => row.dataset.name)"
            )

        def picture(self) -> str:
            return self.run("return document.getElementById('picture').src")

    shown = Page()
    shown.scheme("light")
    yield shown
    browser.get("about:blank")


@pytest.fixture
def fifty(cameras, result):
    """Fifty cameras: most live once, one away, one that changes its predictions."""
    for number in range(49):
        name = f"camera-{number:02d}"
        cameras.add(name, f"rtsp://***@nvr/{number}", {}, who="test")
        cameras.streams[name].board.write(result(number, changed=number == 7))
    away = Connection(state="reconnecting", reason="connection refused", attempt=2, next_try_s=4e9)
    cameras.streams["camera-03"].board.connect(away)
    return cameras


def test_page_loads_without_errors_and_asks_nobody_else(serve, page, stream, until):
    server = serve()
    page.open(server)
    page.shows("state", "live")
    page.shows("learning", "learning")
    assert page.text("name") == "yard"
    assert "moved the logits by 0.5 nats" in page.text("summary")
    until(lambda: 10.0 < float(page.text("rate")) < 30.0)
    assert page.text("agreement").endswith("%")
    until(lambda: "7.25" in page.text("adaptation"))
    until(lambda: page.run("return document.querySelector('.chart path.adapted').getTotalLength()"))
    assert "forward6.00 ms" in page.text("stage-list")
    assert "together7.50 ms" in page.text("stage-list")
    until(lambda: "fog" in page.run("return document.querySelector('.weather').textContent"))
    # Labels are text, whatever is in them.
    until(lambda: "<b>cassis</b>" in page.text("classes"))
    assert page.run("return document.querySelectorAll('#classes b').length") == 0
    every_term_has_an_explanation(page)
    assert page.errors() == []
    assert page.hosts() == {f"127.0.0.1:{server.address.port}"}


def every_term_has_an_explanation(page) -> None:
    terms = page.run(
        "return [...document.querySelectorAll('#camera .term')].map((t) => t.textContent)"
    )
    for wanted in ("strength", "agreement", "expected gain", "source network", "shift", "dropped"):
        assert wanted in terms
    page.run("document.querySelector('.gauges .term').click()")
    assert page.text("explanation").startswith("How much of the correction was applied")
    assert not page.run("return document.getElementById('explanation').hidden")
    page.press(Keys.ESCAPE)
    assert page.run("return document.getElementById('explanation').hidden")


def test_the_overview_is_sorted_filtered_and_of_even_height(serve, page, fifty, until):
    page.open(serve(), at="#/")
    page.shows("overview-title", "50 cameras, 1 in trouble")
    assert page.names() == [*(f"camera-{number:02d}" for number in range(49)), "yard"]
    heights = page.run(
        "return [...new Set([...document.querySelectorAll('#cameras tbody tr')]"
        ".map((row) => row.offsetHeight))]"
    )
    assert len(heights) == 1
    page.click("[data-sort=state] button")
    until(lambda: page.names()[0] == "camera-03")
    sort = "return document.querySelector('[data-sort=state]').getAttribute('aria-sort')"
    assert page.run(sort) == "ascending"
    page.run(
        "const filter = document.getElementById('filter');"
        "filter.value = 'camera-07'; filter.dispatchEvent(new Event('input'));"
    )
    until(lambda: page.names() == ["camera-07"])
    cell = "return document.querySelector('#cameras td.changed').title"
    assert page.run(cell) == "apple (source network) → crème brûlée (adapted)"
    # Only pictures that can be seen are asked for, and this one is.
    until(lambda: page.run("return document.querySelector('.thumb img').naturalWidth") == 96)
    page.click("#cameras tbody tr")
    page.shows("name", "camera-07")
    assert page.errors() == []


def test_a_camera_that_is_away_says_since_when_why_and_when_it_is_tried_again(
    serve, page, fifty, until
):
    page.open(serve(), at="#/camera/camera-03")
    page.shows("state", "reconnecting")
    until(lambda: page.text("veil-title").startswith("No signal since "))
    assert page.text("veil-next").startswith("next try in ")
    assert page.text("veil-next").endswith("attempt 2")
    assert page.text("veil-reason") == "connection refused"
    assert page.run("return document.getElementById('learning').hidden")
    fifty.streams["camera-05"].board.enter("failed", "no disk", attempt=2, next_try_s=4e9)
    page.run("location.hash = '#/camera/camera-05'")
    page.shows("state", "failed")
    until(lambda: page.text("veil-title").startswith("Failed since "))
    assert page.text("veil-next").endswith("attempt 2")


def test_nothing_of_a_camera_stands_on_the_page_of_the_next(serve, page, stream, cameras, until):
    cameras.add("away", "rtsp://cam/1", {}, who="test")
    page.open(serve())
    texts = "return {}.map((id) => document.getElementById(id).textContent)"
    filled = texts.format("['source-top', 'index', 'strength', 'stage-list', 'camera-events']")
    cameras.events.add("yard", "command", "something", who="me")
    until(lambda: "something" in page.run(filled)[-1] and "\N{EN DASH}" not in page.run(filled))
    height = "return document.querySelector('.classes').offsetHeight"
    before = page.run(height)
    for other in ("away", "nowhere"):
        page.run(f"location.hash = '#/camera/{other}'")
        page.shows("name", other)
        until(
            lambda: (
                page.run(filled)
                == ["\N{EN DASH}", "\N{EN DASH}", "\N{EN DASH}", "", "Nothing has happened yet."]
            )
        )
        assert page.run("return document.querySelectorAll('#classes tr').length") == 5
        assert page.run(height) == before
    until(lambda: "there is no camera" in page.text("summary"))
    assert page.text("state") == page.text("source") == ""
    enabled = "return document.querySelectorAll('#camera .buttons button:enabled').length"
    assert page.run(enabled) == 0


def test_cameras_are_added_and_removed_on_the_page(serve, page, cameras, stream, until):
    page.open(serve(), at="#/")
    until(lambda: page.names() == ["yard"])
    page.click("#add-open")
    assert page.text("add-kept") == "It is kept in cameras.toml."
    fill = (
        "document.getElementById('add-name').value = '{}';"
        "document.getElementById('add-input').value = 'rtsp://cam/2';"
        "document.getElementById('add-form').requestSubmit();"
    )
    page.run(fill.format("yard"))
    until(lambda: "choose another" in page.text("add-problem"))
    page.run(fill.format("door"))
    until(lambda: page.names() == ["door", "yard"])
    page.run("location.hash = '#/camera/door'")
    page.shows("name", "door")
    # Until the camera's first frame there is no button to press.
    until(lambda: not page.run("return document.getElementById('remove').disabled"))
    page.click("#remove")
    until(lambda: page.run("return document.getElementById('ask').open"))
    page.click("#ask-yes")
    until(lambda: page.names() == ["yard"])
    assert "removed" in page.text("toast")


def test_picture_and_numbers_move_together_also_side_by_side(serve, page, stream, until):
    page.open(serve())
    until(lambda: page.run("return document.getElementById('picture').naturalWidth > 0"))
    first = page.picture()
    until(lambda: page.picture() != first)
    ratio = (
        "const p = document.getElementById('picture');"
        "return p.naturalHeight ? p.naturalWidth / p.naturalHeight : 0"
    )
    until(lambda: 1.4 < page.run(ratio) < 1.6)
    page.click("#view-side-by-side")
    until(lambda: 2.8 < page.run(ratio) < 3.2)
    stream.stop.set()
    stream.thread.join()
    last = stream.board.view().result.frame.index
    page.shows("index", str(last))
    assert page.text("adapted-top") == ("crème brûlée" if last % 4 == 3 else "apple")


def test_one_cursor_over_all_charts_moved_by_pointer_and_by_keys(serve, page, stream, until):
    page.open(serve())
    points = "return document.querySelector('.plot').getAttribute('aria-valuemax')"
    until(lambda: int(page.run(points) or 0) >= 3)
    shown = (
        "return [...document.querySelectorAll('.chart:not([hidden]) .cursor')].map((c) => c.hidden)"
    )
    assert set(page.run(shown)) == {True}
    page.run("document.querySelector('.plot').focus()")
    page.press(Keys.HOME)
    until(lambda: page.text("cursor-time").startswith("at "))
    assert set(page.run(shown)) == {False}
    value = "return document.querySelector('.plot').getAttribute('aria-valuetext')"
    first = page.run(value)
    assert "0.75" in first
    page.press(Keys.ARROW_RIGHT)
    until(lambda: page.run(value) != first)
    page.press(Keys.ESCAPE)
    until(lambda: set(page.run(shown)) == {True})
    page.run(
        "const plot = document.querySelectorAll('.plot')[1];"
        "const clientX = plot.getBoundingClientRect().right - 5;"
        "plot.dispatchEvent(new PointerEvent('pointermove', { clientX, bubbles: true }))"
    )
    until(lambda: set(page.run(shown)) == {False})


def test_buttons_change_the_state_and_tell_the_outcome(serve, page, stream, until):
    page.open(serve())
    page.shows("learning", "learning")
    until(lambda: not page.run("return document.getElementById('freeze').disabled"))
    page.click("#freeze")
    page.shows("learning", "learning paused")
    assert stream.frozen
    page.shows("toast", "freeze was done")
    page.shows("freeze", "Learn again")
    until(lambda: "freeze was done by page at 127.0.0.1" in page.text("camera-events"))
    # Where the command falls is marked in the curves.
    until(lambda: page.run("return document.querySelectorAll('line.mark.command').length") >= 1)
    until(lambda: not page.run("return document.getElementById('freeze').disabled"))
    page.click("#freeze")
    page.shows("learning", "learning")
    assert not stream.frozen


def test_reset_asks_first(serve, page, stream, until):
    page.open(serve())
    until(lambda: not page.run("return document.getElementById('reset').disabled"))
    page.click("#reset")
    until(lambda: page.run("return document.getElementById('ask').open"))
    page.click("#ask-no")
    until(lambda: not page.run("return document.getElementById('ask').open"))
    assert stream.done == []
    until(lambda: not page.run("return document.getElementById('reset').disabled"))
    page.click("#reset")
    until(lambda: page.run("return document.getElementById('ask').open"))
    page.click("#ask-yes")
    until(lambda: stream.done == ["reset"])


def test_buttons_that_cannot_work_cannot_be_pressed(serve, page, stream, cameras, until):
    stream.commands = ("freeze", "unfreeze", "reset")
    server = serve()
    page.open(server)
    page.shows("state", "live")
    script = "return [...document.querySelectorAll('#camera button:disabled')].map((b) => b.id)"
    until(lambda: page.run(script) == ["save", "roll-back"])
    server.close()
    page.shows("online", "offline")
    until(lambda: {"freeze", "reset", "pause", "restart", "remove"} <= set(page.run(script)))
    # The page finds the service again.
    with open_server(cameras, address=server.address):
        page.shows("online", "online")
        until(lambda: page.run(script) == ["save", "roll-back"])


def test_events_are_listed_filtered_and_read_on(serve, page, cameras, until):
    for number in range(130):
        cameras.events.add("yard" if number % 2 else "", "stream", f"event {number}", who="me")
    cameras.events.add("", "login", "logged in", who="page at 127.0.0.1")
    page.open(serve(), at="#/events")
    items = "return document.querySelectorAll('#all-events li').length"
    until(lambda: page.run(items) == 100)
    page.click("#more-events")
    until(lambda: page.run(items) == 131)
    page.run(
        "const kind = document.getElementById('event-kind');"
        "kind.value = 'login'; kind.dispatchEvent(new Event('change'));"
    )
    until(lambda: page.run(items) == 1)
    assert "logged in by page at 127.0.0.1" in page.text("all-events")
    assert page.errors() == []


def test_wrong_token_is_refused_and_the_right_one_opens(serve, page, stream, until):
    server = serve(token=TOKEN)
    page.open(server)
    until(lambda: not page.run("return document.getElementById('login').hidden"))
    enter = (
        "document.getElementById('token').value = '{}';"
        "document.getElementById('login-form').requestSubmit();"
    )
    page.run(enter.format("not-the-token-at-all"))
    page.shows("login-problem", "That is not the token.")
    page.run(enter.format(TOKEN))
    page.shows("state", "live")
    until(lambda: page.run("return document.getElementById('picture').naturalWidth > 0"))
    assert page.run("return document.cookie") == ""
    until(lambda: not page.run("return document.getElementById('freeze').disabled"))
    page.click("#freeze")
    until(lambda: stream.frozen)


SIZES = ((320, 640), (390, 844), (768, 1024), (1920, 1080))
# By default every page and every size; all pairs of both among the slow ones.
USUAL = {(320, "#/"), (390, "#/camera/yard"), (768, "#/events"), (1920, "#/")}


@pytest.mark.parametrize(
    ("width", "height", "at"),
    [
        pytest.param(*size, at, marks=[] if (size[0], at) in USUAL else pytest.mark.slow)
        for size in SIZES
        for at in DRAWN
    ],
)
def test_nothing_is_wider_than_the_window(serve, page, stream, fifty, until, width, height, at):
    page.open(serve(), at=at, width=width, height=height)
    page.shows("online", "online")
    until(lambda: page.run(DRAWN[at]))
    widths = page.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1] == width


def test_every_text_has_enough_contrast(serve, page, stream, fifty, until):
    server = serve()
    for at, drawn in DRAWN.items():
        page.open(server, at=at)
        page.shows("online", "online")
        until(lambda drawn=drawn: page.run(drawn))
        for scheme in ("dark", "light"):
            page.scheme(scheme)
            found = page.run(CONTRASTS)
            assert len(found) >= 8
            weak = [item for item in found if item[1] < LEAST_CONTRAST]
            assert weak == [], (at, scheme)


def test_nothing_jumps_when_a_share_reaches_a_hundred(serve, page, idle, result, until):
    from dataclasses import replace

    from gain_runtime.frames import Ranked

    server = serve()
    tops = []
    for prob in (0.07, 1.0):
        top = tuple(Ranked(index=k, label=f"class {k}", prob=prob) for k in range(3))
        idle.board.write(replace(result(0), source_top=top, adapted_top=top))
        page.open(server)
        until(lambda: "class 2" in page.text("classes"))
        tops.append(
            page.run(
                "return [...document.querySelectorAll('#classes tr, .gauges, .buttons, .share i')]"
                ".map((e) => [e.getBoundingClientRect().top, e.getBoundingClientRect().width])"
            )
        )
    assert tops[0] == tops[1]
