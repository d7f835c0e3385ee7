"""Somebody who watches the page of a service all the time, and is asked now and then what they see.

Headless Chromium where it is installed, else a client that reads the picture's stream.
"""

from __future__ import annotations

import shutil
import threading
import urllib.request
from contextlib import suppress
from typing import Protocol

PICTURE = """
const pictures = [...document.querySelectorAll('#picture, .thumb img')];
const image = pictures.find((one) => one.naturalWidth && one.checkVisibility());
if (!image) return '';
const canvas = document.createElement('canvas');
canvas.width = 64; canvas.height = 48;
canvas.getContext('2d').drawImage(image, 0, 0, 64, 48);
return canvas.toDataURL();
"""
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
CHUNK_BYTES = 65_536


class Viewer(Protocol):
    """Watches one address, also across restarts of what is served there."""

    kind: str

    def sees(self) -> dict[str, object]:
        """Whether the picture moved since the last question, and what the page says of itself."""
        ...

    def close(self) -> None:
        """Stop watching."""
        ...


def open_viewer(url: str) -> Viewer:
    """The best viewer that this machine has."""
    browser = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if browser is not None and driver is not None:
        with suppress(ImportError):
            return ChromiumViewer(url, browser=browser, driver=driver)
    return StreamViewer(url)


class ChromiumViewer:
    """The page in headless Chromium, loaded once."""

    kind = "headless Chromium"

    def __init__(self, url: str, *, browser: str, driver: str) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service

        options = Options()
        options.binary_location = browser
        for flag in FLAGS:
            options.add_argument(flag)
        options.page_load_strategy = "none"
        self._browser = webdriver.Chrome(service=Service(driver), options=options)
        self._browser.set_script_timeout(10)
        self._browser.get(url)
        self._picture = ""

    def sees(self) -> dict[str, object]:
        from selenium.common.exceptions import WebDriverException

        try:
            picture = str(self._browser.execute_script(PICTURE))
            health = str(
                self._browser.execute_script(
                    "return document.getElementById('online')?.textContent ?? ''"
                )
            )
        except WebDriverException as err:
            return {"moved": False, "page": f"{type(err).__name__}: {err.msg}"}
        moved = picture not in ("", self._picture)
        self._picture = picture
        return {"moved": moved, "page": health}

    def close(self) -> None:
        self._browser.quit()


class StreamViewer:
    """A client that reads the moving picture and opens it again when it ends."""

    kind = "HTTP client of one picture's stream"

    def __init__(self, url: str) -> None:
        self._url = url.split("#")[0].rstrip("/") + "/cameras/camera-00/picture.mjpg"
        self._bytes = self._seen = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def sees(self) -> dict[str, object]:
        moved, self._seen = self._bytes > self._seen, self._bytes
        return {"moved": moved, "page": f"{self._bytes} bytes of pictures"}

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _read(self) -> None:
        while not self._stop.wait(1.0):
            with suppress(OSError), urllib.request.urlopen(self._url, timeout=10) as reply:
                while not self._stop.is_set() and (data := reply.read1(CHUNK_BYTES)):
                    self._bytes += len(data)
