"""The contract's page against the files that are written."""

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest

from gain_core import PRESETS
from gain_export.adaptive import add_adaptation
from gain_runtime.files.adaptive import ADAPTIVE_PREFIX, load_adaptive
from gain_runtime.files.manifest import Preprocess

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "adaptive-file.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "how-to" / "adaptive-file.md").read_text(encoding="utf-8")
NUM_CLASSES, FEATURE_DIM = 1000, 4


@pytest.mark.parametrize(
    ("waits", "stated"),
    [
        pytest.param(1, r"`80 K` bytes .*: (\d+) kB at K = 1000", id="nothing-waits"),
        pytest.param(None, r"and (\d+) kB in a\sfile as", id="as-exported"),
    ],
)
def test_the_size_of_a_shifts_state(make_artifact, tmp_path, waits, stated):
    weight = np.random.default_rng(0).normal(size=(NUM_CLASSES, FEATURE_DIM)).astype(np.float32)
    settings = {} if waits is None else {"update_every": waits, "warmup_frames": waits}
    report = add_adaptation(make_artifact(weight), tmp_path / "tiny.adaptive.onnx", **settings)
    found = re.search(stated, PAGE)
    assert found is not None
    assert round(report.state_bytes / 1000) == int(found[1])
    by_class = 80 if waits else 80 + 28
    assert 0 <= report.state_bytes - by_class * NUM_CLASSES < 1000
    assert "`28 K` more" in PAGE


@pytest.mark.parametrize("preset", ["shift", "paper"])
def test_the_table_of_the_state_is_the_files(make_artifact, tmp_path, preset):
    """Names, shapes and types, whatever the method keeps."""
    K, D, M = 5, 7, 3
    weight = np.random.default_rng(0).normal(size=(K, D)).astype(np.float32)
    path, waits = tmp_path / "tiny.adaptive.onnx", {"update_every": 2, "warmup_frames": M}
    add_adaptation(make_artifact(weight), path, config=PRESETS[preset], **waits)
    part = PAGE.split("With the presets `paper`")[0 if preset == "shift" else 1]
    part = part.split("## State")[-1].split("Together")[0]
    sizes = {"K": K, "D": D, "J": 2, "M - 1": M - 1}
    stated = {}
    for names, shapes, dtypes in re.findall(r"^\| (`[^|]+) \| ([^|]+) \| (\w+) \|", part, re.M)[1:]:
        fields_here = re.findall(r"`(\w+)`", names)
        found = re.findall(r"\(([^)]*)\)", shapes)
        for field, shape in zip(fields_here, found * (len(fields_here) // len(found)), strict=True):
            axes = [axis.strip() for axis in shape.split(",") if axis.strip()]
            stated[field] = tuple(sizes.get(axis) or int(axis) for axis in axes), dtypes
    assert stated == {item.field: (item.shape, item.dtype) for item in load_adaptive(path).state}


@pytest.fixture
def model(make_artifact, tmp_path):
    """A small adaptive file."""
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(make_artifact(np.eye(3, 4, dtype=np.float32)), path)
    return onnx.load(path)


def test_every_key_of_the_metadata_has_a_row(model):
    keys = {item.key for item in model.metadata_props}
    assert set(re.findall(rf"`({ADAPTIVE_PREFIX}\w+)`", PAGE)) == {
        key for key in keys if key.startswith(ADAPTIVE_PREFIX)
    }


def test_every_key_of_the_preprocessing_has_a_row(model):
    metadata = {item.key: item.value for item in model.metadata_props}
    written = json.loads(metadata["gain.preprocess"])
    assert written.keys() == {field.name for field in fields(Preprocess)}
    table = PAGE.split("**Preparing a frame.**")[1].split("## Outputs")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", table, flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == written.keys()


def test_the_short_program_reads_outputs_that_exist(model):
    program = GUIDE.split("```text")[1].split("```")[0]
    used = set(re.findall(r"outputs\.(\w+)", program)) - {"next_state"}
    assert used <= {value.name for value in model.graph.output}
