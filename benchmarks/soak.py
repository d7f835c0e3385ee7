"""A stream that runs for hours, is watched, and is killed now and then; what it came to.

    python benchmarks/soak.py --artifact ARTIFACT --json benchmarks/results/soak.json
    python benchmarks/soak.py --table benchmarks/results/soak.json --into docs/operations.md

ARTIFACT is `models/roadsigns/roadsigns.onnx` after `gain-export`; `make demo` leaves one.
`gain-stream test://drive` runs on it at a camera's pace, with snapshots and the page on.
A viewer stays on the page. Twice a minute the metrics and the resident memory are noted; every ten
minutes the process gets SIGKILL and is started again, and what the next one restores is compared
with what the last one had learned. The file is written after every note.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime
from marks import put_tables
from prometheus_client.parser import text_string_to_metric_families
from soak_table import lost_frames, soak_table
from soak_viewer import Viewer, open_viewer

from gain_core import __version__

START_S = 60.0
MARGIN_S = 20.0
SNAPSHOT_EVERY = 200
CONTINUED = re.compile(r"continued after (\d+) learned frames")
NUMBERED = re.compile(r"snapshot-(\d+)-(\d+)\.safetensors")
# Metrics that are noted, by the name they get here.
NOTED = {
    "gain_frames_total": "frames",
    "gain_frames_dropped_total": "dropped",
    "gain_frames_rejected_total": "rejected",
    "gain_frames_skipped_total": "skipped",
    "gain_reconnects_total": "reconnects",
    "gain_frames_learned": "learned",
    "gain_rate_hz": "rate_hz",
    "gain_agreement_ratio": "agreement",
    "gain_adaptation_shift_nats": "shift_nats",
}


def main() -> int:
    """Soak, or print the table of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, metavar="JSON", help="print a result and end")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="put the table there instead")
    parser.add_argument("--artifact", type=Path, help="the road signs, after gain-export")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--kill-minutes", type=float, default=10.0, help="life of one process")
    parser.add_argument("--last-minutes", type=float, default=20.0, help="least of the last one")
    parser.add_argument("--note-seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=8.0, help="frames per second")
    parser.add_argument("--port", type=int, default=8917)
    parser.add_argument("--folder", type=Path, help="rows, logs and snapshots (default: temporary)")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    args = parser.parse_args()
    if args.table is not None:
        report = json.loads(args.table.read_text("utf-8"))
        if args.into is None:
            print(soak_table(report))
        else:
            put_tables(args.into, {"soak": soak_table}, report)
        return 0
    if args.artifact is None:
        parser.error("--artifact is required; make demo leaves one")
    args.folder = args.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    args.folder.mkdir(parents=True, exist_ok=True)
    StreamSoak(args).run()
    return 0


class Soak:
    """Lives of one process, one after another, and the report on them.

    Parameters
    ----------
    args : argparse.Namespace
        Has `port` and `json`, where the report goes.
    settings : mapping
        The beginning of the report.
    """

    def __init__(self, args: argparse.Namespace, settings: Mapping[str, Any], /) -> None:
        self._args = args
        self._url = f"http://127.0.0.1:{args.port}"
        self._began_s = time.monotonic()
        self._lives: list[dict[str, Any]] = []
        self._report: dict[str, Any] = {
            **settings,
            "versions": {
                "gain-edge": __version__,
                "onnxruntime": onnxruntime.__version__,
                "python": platform.python_version(),
            },
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "lives": self._lives,
        }

    def _now(self) -> float:
        """Seconds since the soak began."""
        return round(time.monotonic() - self._began_s, 1)

    def _save(self) -> None:
        """Replace the file with what is known by now."""
        self._report["minutes"] = round(self._now() / 60.0, 2)
        if self._args.json is None:
            return
        temporary = self._args.json.with_name(f".{self._args.json.name}.tmp")
        temporary.write_text(json.dumps(self._report, indent=1) + "\n")
        temporary.replace(self._args.json)


class StreamSoak(Soak):
    """Lives of one stream."""

    def __init__(self, args: argparse.Namespace, /) -> None:
        settings = {
            "command": f"python benchmarks/soak.py --artifact ARTIFACT --minutes {args.minutes:g} "
            f"--kill-minutes {args.kill_minutes:g} --last-minutes {args.last_minutes:g} "
            f"--rate {args.rate:g}",
            "minutes_wanted": args.minutes,
            "rate_wanted_hz": args.rate,
            "snapshot_every": SNAPSHOT_EVERY,
        }
        super().__init__(args, settings)

    def run(self) -> None:
        """Everything; raises at the first thing that does not hold."""
        end_s = self._began_s + 60.0 * self._args.minutes
        viewer: Viewer | None = None
        process: subprocess.Popen[bytes] | None = None
        try:
            while time.monotonic() < end_s:
                life_end_s = time.monotonic() + 60.0 * self._args.kill_minutes
                if end_s - life_end_s < 60.0 * self._args.last_minutes - 1.0:
                    life_end_s = end_s
                process = self._start(until_s=life_end_s)
                viewer = viewer or open_viewer(f"{self._url}/#/camera/camera")
                self._report["viewer"] = viewer.kind
                self._watch(process, viewer, until_s=life_end_s)
                self._end(process, killed=life_end_s < end_s)
        finally:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
            if viewer is not None:
                viewer.close()
            self._save()

    def _start(self, *, until_s: float) -> subprocess.Popen[bytes]:
        """The next life, once it answers; what it restored is compared with the one before."""
        folder, number = self._args.folder, len(self._lives)
        # A little longer than this life, or the drive would end before it is killed.
        frames = int((until_s - time.monotonic() + MARGIN_S) * self._args.rate)
        source = f"test://drive?live=1&rate={self._args.rate:g}&frames={frames}&seed={number}"
        rows, log = folder / f"life-{number}.jsonl", folder / f"life-{number}.log"
        command = [
            *(sys.executable, "-m", "gain_apps.stream", "--verbose", source),
            *("--model", self._args.artifact, "--num-threads", 1, "--json", "-"),
            *("--set", "watchdog=60", "--set", f"snapshot-every={SNAPSHOT_EVERY}"),
            *("--snapshots", folder / "snapshots"),
            *("--serve", self._args.port, "--jsonl", rows),
        ]
        started_s = time.monotonic()
        with log.open("wb") as errors, log.with_suffix(".json").open("wb") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            )
        life: dict[str, Any] = {"number": number, "began_s": self._now(), "notes": []}
        while not self._metrics().get("frames"):
            if process.poll() is not None or time.monotonic() - started_s > START_S:
                process.kill()
                raise SystemExit(f"life {number} does not run: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        life["first_frame_s"] = round(time.monotonic() - started_s, 2)
        self._lives.append(life)
        self._compare(life, log.read_text())
        return process

    def _compare(self, life: dict[str, Any], log: str) -> None:
        """What this life restored, against what the one before had learned when it was killed."""
        found = CONTINUED.search(log)
        life["restored_frames"] = None if found is None else int(found[1])
        life["set_aside"] = log.count("set aside")
        if life["number"] == 0:
            return
        life["lost_frames"] = lost_frames(self._lives[life["number"] - 1], life)
        life["lost_within_bound"] = life["lost_frames"] <= SNAPSHOT_EVERY

    def _watch(self, process: subprocess.Popen[bytes], viewer: Viewer, *, until_s: float) -> None:
        """Note the metrics, the memory and what the viewer sees until this life is over."""
        life = self._lives[-1]
        while (left_s := until_s - time.monotonic()) > 0.0:
            time.sleep(min(self._args.note_seconds, left_s))
            if process.poll() is not None:
                raise SystemExit(f"life {life['number']} ended by itself: {process.returncode}")
            life["notes"].append(
                {
                    "at_s": self._now(),
                    **process_status(process.pid),
                    **self._metrics(),
                    "viewer": viewer.sees(),
                }
            )
            self._save()

    def _end(self, process: subprocess.Popen[bytes], *, killed: bool) -> None:
        """Kill this life, or stop the last one in good order; count what it left."""
        life, folder = self._lives[-1], self._args.folder
        life["learned_at_end"] = int(self._metrics().get("learned", 0))
        process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
        asked_s = time.monotonic()
        life["exit_status"] = process.wait(timeout=30)
        life["killed"] = killed
        life["ended_s"] = self._now()
        life["stop_s"] = round(time.monotonic() - asked_s, 3)
        life["rows"] = _count_rows(folder / f"life-{life['number']}.jsonl")
        names = [NUMBERED.fullmatch(path.name) for path in (folder / "snapshots").iterdir()]
        kept = sorted((int(name[1]), int(name[2])) for name in names if name is not None)
        life["snapshots_so_far"], life["newest_snapshot_frames"] = kept[-1] if kept else (0, 0)
        life["snapshots_kept"] = len(kept)
        log = (folder / f"life-{life['number']}.log").read_text()
        life["warnings"] = [
            line for line in log.splitlines() if line.startswith(("WARNING", "ERROR"))
        ]
        if not killed:
            text = (folder / f"life-{life['number']}.json").read_text()
            life["summary"] = json.loads(_without_folders(text, self._args)) if text else None
        self._save()

    def _metrics(self) -> dict[str, float]:
        """The metrics that are noted; empty while nobody answers."""
        try:
            with urllib.request.urlopen(f"{self._url}/metrics", timeout=10) as reply:
                text = reply.read().decode()
        except (urllib.error.URLError, OSError):
            return {}
        values = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = NOTED.get(sample.name)
                if name is not None:
                    values[name] = sample.value
        return values


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


def _without_folders(text: str, args: argparse.Namespace, /) -> str:
    """Names of files only: a committed result says nothing of the machine's folders."""
    for folder in (args.folder, args.artifact.parent):
        text = text.replace(f"{folder}/", "")
    return text


def _count_rows(path: Path) -> dict[str, Any]:
    """Frames, and how many of those with a truth the source and the adaptation had right."""
    counts = {"frames": 0, "with_truth": 0, "source_right": 0, "adapted_right": 0, "torn": 0}
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            counts["torn"] += 1
            continue
        row: Mapping[str, Any] = json.loads(line)
        counts["frames"] += 1
        if row["truth"] is not None:
            counts["with_truth"] += 1
            counts["source_right"] += row["source"][0]["index"] == row["truth"]
            counts["adapted_right"] += row["adapted"][0]["index"] == row["truth"]
    return counts


if __name__ == "__main__":
    sys.exit(main())
