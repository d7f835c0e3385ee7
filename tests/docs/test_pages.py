"""The tutorial and the page of the service, walked through from their first block to the last."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gain_apps import evaluate, export, stream

for library in ("fastapi", "matplotlib"):
    pytest.importorskip(library, reason="the extras serve and report are not installed")

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PROGRAMS = {"gain-export": export, "gain-eval": evaluate, "gain-stream": stream}
# What makes the tutorial short enough for every run of the tests.
SHORT = {
    "range(530)": "range(53)",
    "frames=4000": "frames=64",
    "fog,contrast,frost,brightness": "fog",
    "live=1&rate=10": "live=1&rate=20&resolution=crop",
}


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of every block."""
    text = (DOCS / page).read_text("utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@contextmanager
def serving(command: str, until: Callable[..., str]) -> Iterator[tuple[subprocess.Popen, str]]:
    """The command in a process of its own, and the address of its page."""
    _, *words = shlex.split(command, comments=True)
    with Path("log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gain_apps.stream", *words],
            stderr=log,
            env={**os.environ, "COLUMNS": "200"},
        )

    def address() -> str | None:
        assert process.poll() is None, Path("log.txt").read_text()
        found = re.search(r"watch it at (http://\S+?)/\n", Path("log.txt").read_text())
        return found[1] if found else None

    try:
        yield process, until(address)
    finally:
        process.kill()
        process.wait()


def curl(command: str, address: str) -> dict:
    """What a shown request answers, sent to the address at hand."""
    command = re.sub(r"http://(127\.0\.0\.1|device):8080", address, command)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def has_frames(request: str, address: str, *, count: int) -> bool:
    """Whether that many frames of every camera were classified; asked twice a second."""
    time.sleep(0.5)
    return all(
        camera["state"] == "live" and camera["frames"] >= count
        for camera in curl(request, address)["cameras"]
    )


def numbers(text: str, row: str) -> list[float]:
    """Accuracies and calibration errors of a row of a table."""
    (line,) = re.findall(rf"^[│ ]+{row} .*$", text, re.MULTILINE)
    return [float(value) for value in re.findall(r"\d+\.\d", line)[:4]]


@pytest.mark.parametrize(
    "whole", [pytest.param(False, id="short"), pytest.param(True, marks=pytest.mark.slow, id="all")]
)
def test_the_tutorial(whole, tmp_path, monkeypatch, capfd, until):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "models").symlink_to(ROOT / "models")
    said, live, request = "", "", ""
    for language, text in blocks("tutorial.md"):
        for long, short in {} if whole else SHORT.items():
            text = text.replace(long, short)
        if language == "python":
            exec(compile(text, "tutorial.md", "exec"), {})
            said = "".join(capfd.readouterr())
        elif text.startswith("curl"):
            request = text
        elif "--serve" in text:
            live = text.replace("--serve 8080", "--serve 0")
        elif text.startswith("gain-"):
            program, *words = shlex.split(text.replace("\\\n", " "))
            assert PROGRAMS[program].main(words) == 0, capfd.readouterr().err
            said = "".join(capfd.readouterr())
        elif language == "text" and whole:
            for row in ("source", "shift", "all", "clear", "fog"):
                if re.search(rf"^[│ ]+{row} ", text, re.MULTILINE):
                    assert numbers(said, row) == pytest.approx(numbers(text, row), abs=0.5), row
    assert len(re.findall(r"^\d{3}\.png stop", said, re.MULTILINE)) == (3 if whole else 2)
    assert Path("drive.png").stat().st_size > 10_000
    learned = [watch_and_stop(live, request, until) for _ in range(2)]
    assert learned[1] > learned[0] > 0


def watch_and_stop(command: str, request: str, until: Callable[..., str]) -> int:
    """Serve until frames have been learned, ask, press Ctrl-C; how many are in the state."""
    with serving(command, until) as (process, address):
        # Before 64 frames nothing is learned, and nothing is kept.
        until(partial(has_frames, request, address, count=72))
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    log = Path("log.txt").read_text()
    assert re.search(r"stopped by +│ SIGINT", log), log
    assert list(Path("kept").glob("*.safetensors"))
    return int(re.search(r"learned from │ (\d+) frames", log)[1])


def test_the_service_with_its_settings_token_and_command(tmp_path, monkeypatch, until):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    monkeypatch.chdir(tmp_path)
    signs = ROOT / "models" / "roadsigns" / "roadsigns.onnx"
    flags = "--mean 0.5 --std 0.5 --crop-pct 1 --interpolation bilinear --output vit_b16.onnx"
    assert export.main([str(signs), *flags.split()]) == 0
    shown = [text for _, text in blocks("how-to/service.md")]
    (settings,) = [text for text in shown if text.startswith("# cameras.toml")]
    camera = '"test://pattern?live=1&rate=20"'
    settings = re.sub(r'(?<=^input = )".*"', camera, settings, flags=re.MULTILINE)
    Path("cameras.toml").write_text(settings)
    (first,) = [text for text in shown if text.startswith("pip")]
    (second,) = [text for text in shown if text.startswith("python3")]
    token, guarded = second.splitlines()
    subprocess.run(["bash", "-c", token], check=True)
    assert Path("token").stat().st_mode & 0o777 == 0o600
    ((_, request),) = [each for each in blocks("reference/serving.md") if "curl" in each[1]]
    host = guarded.replace("--serve 0.0.0.0:8080", "--serve 0.0.0.0:0")
    for command in (f"{first.splitlines()[1]} --serve 0", host):
        with serving(command, until) as (process, address):
            address = address.replace("0.0.0.0", "127.0.0.1")
            listed = (
                'curl -s -H "Authorization: Bearer $(cat token)" http://device:8080/api/cameras'
            )
            until(partial(has_frames, listed, address, count=5))
            assert "learning paused" in curl(request, address)["outcome"]
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 143
    for path in ("state/yard", "state/door", "yard/rows.jsonl", "door/rows.jsonl"):
        assert Path(path).exists(), path
    assert Path("events.sqlite").stat().st_size > 0
