"""deploy/: the unit is one systemd accepts, and what it runs is what the commands take."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gain_apps.config_file import read_config_file
from gain_apps.stream import build_parser

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "gain-stream@.service"
DOCKERFILES = sorted((DEPLOY / "docker").glob("*.Dockerfile"))


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run(
        [tool, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "SYSTEMD_COLORS": "0"},
    )


@pytest.fixture
def unit(tmp_path):
    """The unit with a command that exists here."""
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text().replace("/opt/gain-edge/bin/gain-stream", "/bin/true"))
    return path


@pytest.mark.parametrize("drop_in", [None, "nvidia.conf", "jetson.conf"])
def test_systemd_accepts_the_unit(unit, drop_in):
    if drop_in is not None:
        folder = unit.with_name(f"{unit.name}.d")
        folder.mkdir()
        shutil.copy(DEPLOY / "systemd" / drop_in, folder)
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_sandbox_is_tight(unit):
    done = analyze("security", "--offline=yes", "--threshold=20", unit)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge a file (before 250)")
    assert done.returncode == 0, done.stdout[-300:]


def test_the_units_flags_are_known():
    text = UNIT.read_text().replace("\\\n", " ")
    command = re.search(r"^ExecStart=(.+)$", text, re.MULTILINE)
    assert command is not None
    flags = set(re.findall(r"(?<=\s)--[a-z-]+", command[1]))
    known = {name for action in build_parser()._actions for name in action.option_strings}
    assert "--serve-token-file" in flags
    assert flags <= known


def test_the_example_settings_are_valid():
    settings = read_config_file(DEPLOY / "systemd" / "kitchen.toml")
    assert settings["serve"] == "0.0.0.0:8080"
    assert settings["update_every"] == 16


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_images_run_as_a_user_and_name_what_exists(path):
    text = path.read_text()
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["gain-stream"\]$', text, re.MULTILINE)
    extras = re.findall(r"'\.\[(\w+)\]'", text)
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    assert extras
    for extra in extras:
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_hadolint_finds_nothing(path):
    tool = shutil.which("hadolint")
    if tool is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([tool, path], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
