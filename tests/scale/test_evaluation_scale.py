"""The evaluation on two workers: equal to the local one, also after it was killed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.scale, pytest.mark.filterwarnings("ignore")]

DATA = "test://signs?frames=600"
FLAGS = "--domains fog,contrast,gaussian_noise --severity 3 --methods shift,neo --seeds 2"
# Four cells (three domains and the clean images) of three chunks.
SHARDS = 12


def command(artifact, folder, *arguments):
    flags = [*FLAGS.split(), "--json", str(folder / "result.json")]
    return [
        *(sys.executable, "-m", "gain_apps.evaluate", str(artifact), DATA),
        *(*flags, *map(str, arguments)),
    ]


def scores(value):
    """A result without what differs between any two runs: times, memory and the command."""
    if isinstance(value, dict):
        skipped = ("step_ms", "machine", "command")
        return {name: scores(item) for name, item in value.items() if name not in skipped}
    return value


def test_killed_and_resumed_on_ray_is_equal_to_local(cluster, roadsigns, tmp_path):
    folders = {name: tmp_path / name for name in ("local", "ray", "shards", "home")}
    for folder in folders.values():
        folder.mkdir()
    local = command(roadsigns, folders["local"], "--cache", folders["local"] / "cache")
    subprocess.run(local, check=True, capture_output=True, timeout=250)

    shards = f"file://{folders['shards']}"
    on_ray = command(roadsigns, folders["ray"], "--ray", cluster, "--cache", shards)
    environment = {**os.environ, "XDG_CACHE_HOME": str(folders["home"])}
    first = subprocess.Popen(
        on_ray, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    there = {}
    until = time.monotonic() + 200
    while len(there) < 3 and first.poll() is None and time.monotonic() < until:
        found = folders["shards"].glob("*/[0-9]*.npz")
        there = {path: path.stat().st_mtime_ns for path in found}
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert 3 <= len(there) < SHARDS
    assert not (folders["ray"] / "result.json").exists()

    done = subprocess.run(
        on_ray, env=environment, check=False, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert len(list(folders["shards"].glob("*/*.npz"))) == SHARDS
    # What was there when the first was killed was not made again.
    assert all(path.stat().st_mtime_ns == changed for path, changed in there.items())
    results = [json.loads((folders[name] / "result.json").read_text()) for name in ("local", "ray")]
    print(f"killed after {len(there)} of {SHARDS} shards, resumed; accuracy", end=" ")
    print({name: round(found["accuracy"], 2) for name, found in results[1]["methods"].items()})
    assert scores(results[0]) == scores(results[1])


def test_what_fails_on_a_worker_is_one_line(cluster, roadsigns, tmp_path):
    (tmp_path / "images" / "red light").mkdir(parents=True)
    (tmp_path / "images" / "red light" / "0.jpg").write_bytes(b"\xff\xd8\xff no picture")
    names = tmp_path / "classes.tsv"
    names.write_text("index\twnid\tname\n0\tn00000001\tred light\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gain_apps.evaluate", str(roadsigns)),
            *(str(tmp_path / "images"), "--class-file", str(names), "--domains", "fog"),
            *("--ray", cluster, "--cache", str(tmp_path / "cache")),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 1
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("gain-eval: error")]
    assert "0.jpg: expected a readable image" in line
