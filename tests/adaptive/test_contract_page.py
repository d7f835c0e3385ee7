"""The contract's page and the examples' README against the files that are written."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest

from gain_apps.defaults import UPDATE_EVERY, WARM_UP
from gain_apps.export import main
from gain_core import GainConfig
from gain_export.adaptive import add_adaptation
from gain_runtime.manifest import Preprocess

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adaptive-onnx.md").read_text(encoding="utf-8")
NUM_CLASSES, FEATURE_DIM = 1000, 4
TOLERANCES = ("FREE_PROBS", "FREE_STATE", "ORACLE_SHIFT", "STEP", "SUMS", "ROUNDINGS")


@pytest.mark.parametrize(
    ("update_every", "warmup_frames", "stated"),
    [
        pytest.param(1, 1, r"`84 K` bytes .*: (\d+) kB at K = 1000", id="nothing-waits"),
        pytest.param(UPDATE_EVERY, WARM_UP, r"and (\d+) kB in a file as", id="as-exported"),
    ],
)
def test_the_size_of_a_shifts_state(make_artifact, tmp_path, update_every, warmup_frames, stated):
    weight = np.random.default_rng(0).normal(size=(NUM_CLASSES, FEATURE_DIM)).astype(np.float32)
    report = add_adaptation(
        make_artifact(weight),
        tmp_path / "tiny.adaptive.onnx",
        config=GainConfig(),
        update_every=update_every,
        warmup_frames=warmup_frames,
    )
    found = re.search(stated, PAGE)
    assert found is not None
    assert round(report.state_bytes / 1000) == int(found[1])
    by_class = {1: "84", UPDATE_EVERY: "84 + 24"}[update_every]
    assert 0 <= report.state_bytes - sum(map(int, by_class.split(" + "))) * NUM_CLASSES < 2000
    assert "`84 K`" in PAGE
    assert "`24 K`" in PAGE


def test_every_key_of_the_preprocessing_has_a_row(make_artifact, tmp_path):
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(make_artifact(np.eye(3, 4, dtype=np.float32)), path, config=GainConfig())
    metadata = {item.key: item.value for item in onnx.load(path).metadata_props}
    written = json.loads(metadata["gain.preprocess"])
    assert written.keys() == {field.name for field in fields(Preprocess)}
    table = PAGE.split("**Preparing a frame.**")[1].split("## Outputs")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", table, flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == written.keys()
    assert "(level / 255 - mean) / std" in table


def test_the_short_program_reads_outputs_that_exist(make_artifact, tmp_path):
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(make_artifact(np.eye(3, 4, dtype=np.float32)), path, config=GainConfig())
    program = PAGE.split("## In ten lines")[1].split("```")[1]
    outputs = {value.name for value in onnx.load(path).graph.output}
    used = set(re.findall(r"outputs\.(\w+)", program)) - {"next_state"}
    assert used <= outputs
    lines = program.splitlines()
    first_use = next(i for i, line in enumerate(lines) if "use outputs" in line)
    assert any("if not outputs.finite: continue" in line for line in lines[:first_use])


def test_the_readmes_command_makes_the_file(tmp_path, monkeypatch):
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^    (gain-export .*?)\n\n", text, flags=re.MULTILINE | re.DOTALL)
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", " "))[1:]
    monkeypatch.chdir(ROOT)
    words[words.index("--output") + 1] = str(tmp_path / "signs.onnx")
    assert main(words) == 0
    metadata = onnx.load(tmp_path / "signs.adaptive.onnx").metadata_props
    assert "stop" in {item.key: item.value for item in metadata}["gain.labels"].lower()


def test_the_exactness_is_that_of_the_tests():
    table = PAGE.split("**Exactness.**")[1].split("## Notes")[0]
    rows = re.findall(r"^\| (free|one step) .* \| (\S+) \| ([^|]+) \|$", table, flags=re.MULTILINE)
    parts = [tolerances(name) for name in ("shift_graph", "shift_parts", "revision")]
    gaussian, tracked = (
        tolerances("step_graph"),
        {name: max(p.get(name, 0.0) for p in parts) for name in TOLERANCES},
    )
    assert [row[1:] for row in rows] == [
        (as_text(gaussian["FREE_PROBS"]), as_text(tracked["FREE_PROBS"])),
        (as_text(gaussian["FREE_STATE"]), as_text(tracked["FREE_STATE"])),
        ("-", as_text(tracked["ORACLE_SHIFT"])),
        (
            as_text(gaussian["STEP"]),
            f"{as_text(tracked['SUMS'])} and {tracked['ROUNDINGS']:.0f} roundings",
        ),
    ]


def tolerances(name: str) -> dict[str, float]:
    """Those of a test file."""
    found = runpy.run_path(str(Path(__file__).with_name(f"test_{name}.py")))
    return {key: found[key] for key in TOLERANCES if key in found}


def as_text(tolerance: float) -> str:
    """As the page writes it: 5e-5."""
    return f"{tolerance:.0e}".replace("e-0", "e-")
