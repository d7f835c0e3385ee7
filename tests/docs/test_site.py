"""The documentation site: built with warnings as errors, and sufficient in itself."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"

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
    pages = {path for path in pages if path.parts[0] != "_parts"}
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
    page = (site / "explanation" / "method.html").read_text("utf-8")
    assert page.count("<math") > 20
    assert "arithmatex" not in page


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (
            "reference/api/gain_core.html",
            "Continual test-time adaptation of one classifier on one stream",
        ),
        ("reference/api/gain_runtime.html", "Preprocessing, engine and state files of one stream"),
        ("reference/api/gain_apps.html", "Commands in the order they came"),
    ],
)
def test_reference_is_made_of_the_docstrings(site, page, text):
    assert text in (site / page).read_text("utf-8").replace("&#39;", "'")


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        pytest.param(
            "reference/commands.html",
            ("gain-export", "gain-stream", "gain-eval suite", "gain-bench", "--update-every"),
            id="commands",
        ),
        pytest.param(
            "reference/serving.html",
            ("gain_frames_total", "gain_adaptation_shift_nats", "gain_state{state}"),
            id="metrics",
        ),
        pytest.param("explanation/measured.html", ("vit_k36, one-after", "cotta"), id="results"),
    ],
)
def test_what_is_generated_is_there(site, page, texts):
    text = (site / page).read_text("utf-8")
    assert [each for each in texts if each not in text] == []
    assert "<!-- commands -->" not in text
    assert "<!-- metrics -->" not in text
    assert "<!-- result: " not in text


def test_links_of_the_readme_and_the_pages_lead_to_files():
    """The site's own check does not see what lies outside of docs/."""
    missing = []
    for path in (README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\(([^)#\s]+)", path.read_text("utf-8")):
            if "://" not in link and not (path.parent / link).exists():
                missing.append(f"{path.name}: {link}")
    assert missing == []


def test_report_and_readme_show_the_committed_results():
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "report.py", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_cost_in_the_readme_is_the_committed_one():
    bench = json.loads((ROOT / "benchmarks" / "results" / "bench_cpu.json").read_text("utf-8"))
    ratio = bench["adapted_over_frozen"]
    text = " ".join(README.read_text("utf-8").split())
    whole, rest = ratio["throughput_ratio"], ratio["throughput_ratio_without_decode"]
    assert f"{whole:.3f} of the frozen throughput, {rest:.3f} without decoding" in text
