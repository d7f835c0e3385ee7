"""deploy/: the unit is one systemd accepts, and what it runs is what the commands take."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gain_apps.stream import build_parser
from gain_apps.streaming.plan import read_config_file

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
    assert {"--config", "--cameras", "--set"} <= flags
    assert flags <= known


def test_the_unit_notifies_and_hands_over_its_secrets():
    lines = UNIT.read_text().splitlines()
    for line in ("Type=notify", "RestartPreventExitStatus=2", "WatchdogSec=120"):
        assert line in lines
    assert "LoadCredential=settings:/etc/gain-edge/%i.toml" in lines
    assert "LoadCredential=serve-token:/etc/gain-edge/%i.token" in lines


@pytest.mark.parametrize("name", ["systemd/kitchen.toml", "compose/gain-edge.toml"])
def test_the_example_settings_are_valid(name):
    settings = read_config_file(DEPLOY / name)
    assert settings["serve"] == "0.0.0.0:8080"
    assert settings["update_every"] == 16
    assert settings["cameras"]


def promtool(*arguments: object) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(
        [tool, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=DEPLOY / "prometheus",
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_rules_and_settings(tmp_path):
    promtool("check", "rules", "gain-stream.rules.yml")
    promtool("test", "rules", "gain-stream.test.yml")
    promtool("check", "config", "--syntax-only", DEPLOY / "compose" / "prometheus.yml")


@pytest.fixture(scope="module")
def exported_metrics():
    """Names of all metrics of a service with a camera that has everything."""
    for library in ("fastapi", "prometheus_client"):
        pytest.importorskip(library, reason="the extra serve is not installed")
    from dataclasses import dataclass

    from gain_apps.serve import EventLog, KeptFacts, LiveBoard, StreamFacts, StreamIdentity
    from gain_apps.serve.access import Logins
    from gain_apps.serve.metrics import MetricsPage

    with EventLog() as events:
        board = LiveBoard("yard", events)
        identity = StreamIdentity(
            source_id="s", artifact="a", artifact_sha256="0", provider="p", version="v"
        )
        facts = StreamFacts(kept=KeptFacts(last_utc_s=1.0), adaptation={"shift_nats": 0.5})
        board.attach(identity, probe=lambda: facts)
        board.poll()

        @dataclass
        class Camera:
            name: str
            board: LiveBoard

        class Cameras:
            def all(self):
                return [Camera("yard", board)]

        text = MetricsPage(Cameras(), Logins()).render().decode()
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("name", ["prometheus/gain-stream.rules.yml", "grafana/gain-stream.json"])
def test_rules_and_board_ask_for_metrics_that_exist(exported_metrics, name):
    text = (DEPLOY / name).read_text()
    asked = set(re.findall(r"\b(?:gain|process)_[a-z_]+(?=[{\[ )\\\"])", text))
    # Of a newest frame there is nothing yet.
    of_frames = {"gain_strength_ratio", "gain_agreement_ratio"}
    bare = {re.sub("_(bucket|count|sum)$", "", metric) for metric in asked}
    assert len(bare) > 8
    assert bare - of_frames <= exported_metrics
    assert bare & of_frames <= {
        f"gain_{name}" for name in __import__("gain_apps.serve.metrics").serve.metrics.GAUGES
    }


def test_the_compose_file_names_files_that_exist():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    folder = DEPLOY / "compose"
    compose = yaml.safe_load((folder / "compose.yaml").read_text())
    for config in compose["configs"].values():
        assert (folder / config["file"]).is_file(), config
    build = compose["services"]["gain-stream"]["build"]
    assert (folder / build["context"] / build["dockerfile"]).is_file()
    known = {name for action in build_parser()._actions for name in action.option_strings}
    command = compose["services"]["gain-stream"]["command"]
    assert {word for word in command if word.startswith("--")} <= known


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
def test_the_commands_at_the_head_of_an_image_fit_it(path):
    """They are parsed only: no container registry is at hand."""
    text = re.sub(r"\\\n#", "", path.read_text())
    (build,) = re.findall(r"^#   docker build -f (\S+) -t (\S+) \.$", text, re.MULTILINE)
    assert (DEPLOY.parent / build[0]).samefile(path)
    (run,) = re.findall(rf"^#   docker run .* {build[1]} +(.+)$", text, re.MULTILINE)
    args = build_parser().parse_args(run.split())
    assert args.serve_token_file == "/data/token"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_hadolint_finds_nothing(path):
    tool = shutil.which("hadolint")
    if tool is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([tool, path], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
