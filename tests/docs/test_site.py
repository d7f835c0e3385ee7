"""The documentation site: built with warnings as errors, and sufficient in itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gain_core import Gain

ROOT = Path(__file__).resolve().parents[2]

for library in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
    pytest.importorskip(library, reason="the group docs is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_of_docs_is_built(site):
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    assert pages <= built
    assert len(pages) >= 14


def test_pages_load_nothing_from_another_host(site):
    fetched = []
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = path.read_text("utf-8")
        fetched += re.findall(
            r"""<(?:script|img|iframe|source)[^>]*src=["']?(?:https?:)?//[^"'>]*""", text
        )
        fetched += re.findall(r"""<link[^>]*href=["']?(?:https?:)?//[^"'>]*""", text)
        fetched += re.findall(r"""(?:url\(|@import\s)["']?(?:https?:)?//[^)"']*""", text)
    assert fetched == []


def test_formulas_need_no_script(site):
    page = (site / "method.html").read_text("utf-8")
    assert page.count("<math") > 20
    assert "arithmatex" not in page


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("api/gain_core.html", "Continual test-time adaptation of one classifier on one stream"),
        ("api/gain_runtime.html", "Preprocessing, engine and state files of one stream"),
        ("api/gain_apps.html", "Commands in the order they came"),
    ],
)
def test_reference_is_made_of_the_docstrings(site, page, text):
    assert text in (site / page).read_text("utf-8").replace("&#39;", "'")


def test_every_metric_in_the_guide_exists():
    text = (ROOT / "apps" / "gain_apps" / "serve" / "metrics.py").read_text("utf-8")
    guide = (ROOT / "docs" / "watching.md").read_text("utf-8")
    named = set(re.findall(r"gain_(\w+)", guide.split("## Metrics and alerts")[1]))
    # The adaptation's numbers are called as the method calls them.
    named -= {"adaptation_", *(f"adaptation_{name}" for name in Gain(3).summary())}
    # The client adds the ending of a counter.
    missing = {name for name in named if f'{name.removesuffix("_total")}"' not in text}
    assert missing == set()
