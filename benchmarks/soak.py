"""Fifty cameras in one service with the page open, killed now and then, while some come and go.

    python benchmarks/soak.py --artifact ARTIFACT --json benchmarks/results/soak.json
    python benchmarks/soak.py --table benchmarks/results/soak.json

ARTIFACT is `models/roadsigns/roadsigns.onnx` after `gain-export`; `make demo` leaves one.
`gain-stream --config` runs `test://pattern` cameras at two frames a second with snapshots, records
and events on; a browser stays on the overview. Ten of the cameras are removed, added, paused and
resumed over the API all the time. What each restart restored is compared with what had been learned
before the kill, camera by camera. The file is written after every note, and beside it, under the
same name, the table of the documentation.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnxruntime
from prometheus_client.parser import text_string_to_metric_families

from gain_core import __version__

START_S = 180.0
SNAPSHOT_EVERY = 20
PICTURE = """
const pictures = [...document.querySelectorAll('#picture, .thumb img')];
const image = pictures.find((one) => one.naturalWidth && one.checkVisibility());
if (!image) return '';
const canvas = document.createElement('canvas');
canvas.width = 64; canvas.height = 48;
canvas.getContext('2d').drawImage(image, 0, 0, 64, 48);
return canvas.toDataURL();
"""
HEALTH = "return document.getElementById('online')?.textContent ?? ''"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
CHUNK_BYTES = 65_536


def main() -> int:
    """Soak, or print the table of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, metavar="JSON", help="print a result and end")
    parser.add_argument("--artifact", type=Path, help="the road signs, after gain-export")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--cameras", type=int, default=50)
    parser.add_argument("--come-and-go", type=int, default=10, help="of the cameras")
    parser.add_argument("--rate", type=float, default=2.0, help="frames per second of each")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--note-seconds", type=float, default=10.0)
    parser.add_argument("--port", type=int, default=8918)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    args = parser.parse_args()
    if args.table is not None:
        print(soak_table(json.loads(args.table.read_text("utf-8"))))
        return 0
    if args.artifact is None:
        parser.error("--artifact is required; make demo leaves one")
    Soak(args).run()
    return 0


class Soak:
    """Lives of one service, one after another, and the report on them."""

    def __init__(self, args: argparse.Namespace, /) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="soak-service-"))
        self._names = [f"camera-{number:02d}" for number in range(args.cameras)]
        # Those that come and go; the others must never notice.
        self._moving = self._names[len(self._names) - args.come_and_go :]
        self._random = random.Random(0)
        self._args = args
        self._url = f"http://127.0.0.1:{args.port}"
        self._began_s = time.monotonic()
        self._lives: list[dict[str, Any]] = []
        self._report: dict[str, Any] = {
            "command": f"python benchmarks/soak.py --artifact ARTIFACT --minutes "
            f"{args.minutes:g} --kills {args.kills} --cameras {args.cameras} --come-and-go "
            f"{args.come_and_go} --rate {args.rate:g} --cores {args.cores}",
            "cameras": args.cameras,
            "come_and_go": args.come_and_go,
            "rate_wanted_hz": args.rate,
            "cores": args.cores,
            "snapshot_every": SNAPSHOT_EVERY,
            "versions": {
                "gain-edge": __version__,
                "onnxruntime": onnxruntime.__version__,
                "python": platform.python_version(),
            },
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "lives": self._lives,
        }

    def run(self) -> None:
        """Everything; the file is written after every note."""
        args = self._args
        config = self._folder / "cameras.toml"
        config.write_text(self._settings())
        life_s = 60.0 * args.minutes / (args.kills + 1)
        viewer: ChromiumViewer | StreamViewer | None = None
        process: subprocess.Popen[bytes] | None = None
        try:
            for number in range(args.kills + 1):
                process = self._start(config, number)
                viewer = viewer or open_viewer(f"{self._url}/#/")
                self._report["viewer"] = viewer.kind
                self._watch(process, viewer, until_s=time.monotonic() + life_s)
                self._end(process, killed=number < args.kills)
        finally:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
            if viewer is not None:
                viewer.close()
            self._save()

    def _settings(self) -> str:
        """The settings file at the beginning."""
        lines = [
            f'model = "{self._args.artifact.resolve()}"',
            f'serve = "{self._args.port}"',
            *('snapshots = "snapshots"', f"snapshot-every = {SNAPSHOT_EVERY}"),
            *('jsonl = "rows.jsonl"', 'events = "events.sqlite"', "num-threads = 1"),
            *("warm-up = 8", "update-every = 8", "watchdog = 120.0"),
        ]
        for name in self._names:
            lines += ["", f"[cameras.{name}]", f'input = "{self._source(name)}"']
        return "\n".join(lines) + "\n"

    def _source(self, name: str) -> str:
        """A small moving picture, another one for each camera."""
        width = 128 + 2 * self._names.index(name)
        return (
            f"test://pattern?live=1&rate={self._args.rate:g}&width={width}&height=96&frames=1000000"
        )

    def _start(self, config: Path, number: int) -> subprocess.Popen[bytes]:
        """The next life, once every camera that should be there is live."""
        log = self._folder / f"life-{number}.log"
        started_s = time.monotonic()
        cores = sorted(os.sched_getaffinity(0))[: self._args.cores]
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "gain_apps.stream", "--verbose", "--config", str(config)],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )
        wanted = set(self._names) - set(self._moving)
        while not wanted <= {row["name"] for row in self._rows() if row["state"] == "live"}:
            if process.poll() is not None or time.monotonic() - started_s > START_S:
                process.kill()
                raise SystemExit(f"life {number} does not run: {log.read_text()[-2000:]}")
            time.sleep(0.5)
        life: dict[str, Any] = {"number": number, "began_s": self._now(), "notes": [], "acts": 0}
        life["all_live_s"] = round(time.monotonic() - started_s, 2)
        text = log.read_text()
        life["set_aside"] = text.count("set aside")
        self._lives.append(life)
        if number > 0:
            life["lost"] = self._lost(text)
        return process

    def _lost(self, log: str) -> dict[str, int]:
        """Learned frames that the kill cost each camera, by the snapshots and what was learned."""
        before = self._lives[-2]["learned"]
        restored = dict(re.findall(r"INFO: (\S+): \S+: continued after (\d+) learned frames", log))
        return {
            name: max(learned - int(restored.get(name, 0)), 0)
            for name, learned in before.items()
            if name not in self._moving
        }

    def _watch(
        self,
        process: subprocess.Popen[bytes],
        viewer: ChromiumViewer | StreamViewer,
        *,
        until_s: float,
    ) -> None:
        """Let cameras come and go, and note what the service and the viewer say."""
        life = self._lives[-1]
        next_note_s = time.monotonic() + self._args.note_seconds
        while time.monotonic() < until_s:
            self._act(life)
            time.sleep(1.0)
            if process.poll() is not None:
                raise SystemExit(f"life {life['number']} ended by itself: {process.returncode}")
            if time.monotonic() >= next_note_s:
                next_note_s += self._args.note_seconds
                life["notes"].append(
                    {
                        "at_s": self._now(),
                        **process_status(process.pid),
                        **self._metrics(),
                        "viewer": viewer.sees(),
                    }
                )
                self._save()

    def _act(self, life: dict[str, Any]) -> None:
        """One camera comes or goes."""
        name = self._random.choice(self._moving)
        states = {row["name"]: row["state"] for row in self._rows()}
        if name not in states:
            body = json.dumps({"name": name, "input": self._source(name)}).encode()
            self._ask("api/cameras", method="POST", body=body)
        elif states[name] == "paused":
            self._ask(f"api/cameras/{name}/commands/resume", method="POST")
        else:
            acts = (("DELETE", ""), ("POST", "/commands/pause"), ("POST", "/commands/restart"))
            method, path = self._random.choice(acts)
            self._ask(f"api/cameras/{name}{path}", method=method)
        life["acts"] += 1

    def _end(self, process: subprocess.Popen[bytes], *, killed: bool) -> None:
        """Kill this life, or stop the last one in good order; count what it left."""
        life = self._lives[-1]
        life["learned"] = self._metrics(per_camera=True)
        process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
        asked_s = time.monotonic()
        life["exit_status"] = process.wait(timeout=60)
        life["stop_s"] = round(time.monotonic() - asked_s, 2)
        life["killed"] = killed
        life["ended_s"] = self._now()
        rows = [path.read_bytes() for path in self._folder.glob("*/rows.jsonl")]
        lines = [line for data in rows for line in data.splitlines(keepends=True)]
        life["rows"] = len(lines)
        # A kill may leave one torn row at the end of each file; the next run cuts it off.
        life["torn_inside"] = sum(
            not line.endswith(b"}\n") for data in rows for line in data.splitlines(True)[:-1]
        )
        self._save()

    def _now(self) -> float:
        """Seconds since the soak began."""
        return round(time.monotonic() - self._began_s, 1)

    def _save(self) -> None:
        """Replace the file with what is known by now."""
        self._report["minutes"] = round(self._now() / 60.0, 2)
        if self._args.json is None:
            return
        temporary = self._args.json.with_name(f".{self._args.json.name}.tmp")
        temporary.write_text(json.dumps(self._report) + "\n")
        temporary.replace(self._args.json)
        if any(life["notes"] and "ended_s" in life for life in self._lives):
            self._args.json.with_suffix(".md").write_text(soak_table(self._report) + "\n")

    def _rows(self) -> list[dict[str, Any]]:
        """The overview; empty while nobody answers."""
        try:
            return list(self._ask("api/cameras")["cameras"])
        except (KeyError, ValueError):
            return []

    def _ask(self, path: str, *, method: str = "GET", body: bytes | None = None) -> Any:
        """One request; a refusal is worth a line and no more."""
        request = urllib.request.Request(f"{self._url}/{path}", method=method, data=body)
        if body is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as err:
            print(f"{method} {path}: {err.code} {err.read()[:200]!r}", file=sys.stderr)
            return {}
        except OSError as err:
            # A machine with other work may answer late.
            print(f"{method} {path}: {err}", file=sys.stderr)
            return {}

    def _metrics(self, *, per_camera: bool = False) -> dict[str, Any]:
        """What is noted: of all cameras, or learned frames of each."""
        for patience in (20, 60, 120):
            try:
                with urllib.request.urlopen(f"{self._url}/metrics", timeout=patience) as reply:
                    text = reply.read().decode()
                break
            except OSError as err:
                print(f"metrics: {err}", file=sys.stderr)
        else:
            raise SystemExit("the service does not answer")
        samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]
        if per_camera:
            return {
                sample.labels["stream"]: int(sample.value)
                for sample in samples
                if sample.name == "gain_frames_learned"
            }

        def total(name: str, **labels: str) -> float:
            return sum(
                sample.value
                for sample in samples
                if sample.name == name and labels.items() <= sample.labels.items()
            )

        still = {
            sample.labels["stream"]: sample.value
            for sample in samples
            if sample.name == "gain_rate_hz" and sample.labels["stream"] not in self._moving
        }
        buckets: dict[str, float] = {}
        for sample in samples:
            if sample.name == "gain_latency_seconds_bucket":
                edge = sample.labels["le"]
                buckets[edge] = buckets.get(edge, 0.0) + sample.value
        return {
            "frames": total("gain_frames_total"),
            "dropped": total("gain_frames_dropped_total"),
            "snapshots": total("gain_snapshots_total"),
            "snapshot_failing": total("gain_snapshot_failing"),
            "live": total("gain_state", state="live"),
            "failed": total("gain_state", state="failed"),
            "still_rate_min_hz": round(min(still.values()), 3),
            "still_rate_median_hz": round(statistics.median(still.values()), 3),
            "latency_p95_s": quantile(buckets, 0.95),
        }


def open_viewer(url: str) -> ChromiumViewer | StreamViewer:
    """The best viewer that this machine has; it watches also across restarts of the service."""
    browser = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if browser is not None and driver is not None:
        with suppress(ImportError):
            return ChromiumViewer(url, browser=browser, driver=driver)
    return StreamViewer(url)


class ChromiumViewer:
    """The page in headless Chromium, loaded once.

    It sees whether the picture moved since the last question, and what the page says of itself.
    """

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
            health = str(self._browser.execute_script(HEALTH))
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


def process_status(pid: int) -> dict[str, float]:
    """Resident memory, threads, open files and processor seconds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    # The command's name is in brackets and may hold spaces.
    times = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = int(times[11]) + int(times[12])
    return {
        "rss_kib": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "open_files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "cpu_s": ticks / os.sysconf("SC_CLK_TCK"),
    }


def quantile(buckets: Mapping[str, float], share: float, /) -> float:
    """Upper end of the bucket of a histogram in which a share is reached."""
    wanted = share * buckets.get("+Inf", 0.0)
    edges = sorted((float(edge), count) for edge, count in buckets.items())
    return next((edge for edge, count in edges if count >= wanted), float("inf"))


def soak_table(report: Mapping[str, Any], /) -> str:
    """The whole run, as this script wrote it, in a table of Markdown."""
    lives = [life for life in report["lives"] if "ended_s" in life]
    notes = [note for life in lives for note in life["notes"]]
    lost = [frames for life in lives for frames in life.get("lost", {}).values()]
    seconds = sum(life["ended_s"] - life["began_s"] for life in lives)
    last = lives[-1]
    mib = [note["rss_kib"] / 1024.0 for note in notes]
    cores = [
        (life["notes"][-1]["cpu_s"] - life["notes"][0]["cpu_s"])
        / (life["notes"][-1]["at_s"] - life["notes"][0]["at_s"])
        for life in lives
        if len(life["notes"]) > 1
    ]
    rows = (
        ("cameras", f"{report['cameras']}, of which {report['come_and_go']} come and go"),
        ("length", f"{report['minutes']:.0f} minutes, {len(lives)} processes"),
        ("frames a second, wanted", f"{report['rate_wanted_hz']:g} of each camera"),
        (
            "frames a second of cameras that stay",
            f"median {statistics.median(note['still_rate_median_hz'] for note in notes):.2f}, "
            f"slowest at any look {min(note['still_rate_min_hz'] for note in notes):.2f}",
        ),
        ("p95 of the latency, at most", f"{max(note['latency_p95_s'] for note in notes):g} s"),
        ("memory", f"{min(mib):.0f} to {max(mib):.0f} MiB resident"),
        (
            "processor",
            f"{statistics.median(cores):.2f} of {report['cores']} cores" if cores else "-",
        ),
        ("comings and goings", f"{sum(life['acts'] for life in lives)}"),
        ("kills survived", f"{sum(life['killed'] for life in lives)}"),
        ("until all are live again", f"{max(life['all_live_s'] for life in lives):.1f} s at most"),
        (
            "learning lost in a kill",
            f"{min(lost)} to {max(lost)} frames of a camera" if lost else "-",
        ),
        (
            "snapshots",
            f"{sum(int(life['notes'][-1]['snapshots']) for life in lives if life['notes'])}",
        ),
        ("snapshots set aside", str(sum(life["set_aside"] for life in lives))),
        ("rows written", f"{last['rows']:,} in {seconds:.0f} s"),
        ("torn rows within a file", str(sum(life["torn_inside"] for life in lives))),
        ("cameras that failed", f"{max(int(note['failed']) for note in notes)}"),
        ("SIGTERM at the end", f"{last['stop_s']:.1f} s, status {last['exit_status']}"),
        (
            "viewer",
            f"{report['viewer']} on the overview; it had moved at "
            f"{sum(note['viewer']['moved'] for note in notes)} of {len(notes)} looks",
        ),
    )
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


if __name__ == "__main__":
    sys.exit(main())
