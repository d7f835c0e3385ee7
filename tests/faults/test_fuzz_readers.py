"""The fuzzer's harness for some seconds a reader, or as long as GAIN_FUZZ_SECONDS says."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from gain_core import Gain, ShiftConfig
from gain_export.adaptive import add_adaptation
from gain_runtime.files.engine import EngineHeader, write_engine
from gain_runtime.files.state import save_state

HARNESS = Path(__file__).with_name("fuzz_readers.py")
SECONDS = int(os.environ.get("GAIN_FUZZ_SECONDS", "8"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("atheris") is None, reason="atheris is not installed"
    ),
]


def seed_model(folder, artifact_path):
    model = onnx.load(artifact_path)
    del model.metadata_props[:]
    onnx.save(model, folder / "whole")


def seed_artifact(folder, artifact_path):
    (folder / "whole").write_bytes(artifact_path.read_bytes())


def seed_adaptive(folder, artifact_path):
    add_adaptation(artifact_path, folder / "whole.adaptive.onnx", config=ShiftConfig())


def seed_engine(folder, artifact_path):
    plan = b"ftrt" + bytes(range(64))
    header = EngineHeader(
        artifact_sha256="0" * 64,
        library="tensorrt",
        version="10.3.0",
        gpu="Orin",
        compute_capabilities=(87,),
        precision="fp16",
        profile=(1, 1, 8),
        builder_level=None,
        flags=(),
        plan_sha256=hashlib.sha256(plan).hexdigest(),
    )
    write_engine(folder / "whole", header, plan)


def seed_state(folder, artifact_path):
    gain = Gain(np.eye(5, 7, dtype=np.float32))
    rng = np.random.default_rng(0)
    gain.step(
        rng.normal(size=(8, 7)).astype(np.float32), rng.normal(size=(8, 5)).astype(np.float32)
    )
    save_state(
        folder / "whole", gain.state, config=ShiftConfig(), artifact_sha256="0" * 64, frames=8
    )


def seed_uri(folder, artifact_path):
    for number, text in enumerate(
        ("rtsp://joe:pw@host:554/1?x=1", "csi://0", "test://drive?seed=3", "a ! b location=c")
    ):
        (folder / str(number)).write_text(text)


SEEDS = {
    "model": seed_model,
    "artifact": seed_artifact,
    "adaptive": seed_adaptive,
    "engine": seed_engine,
    "state": seed_state,
    "uri": seed_uri,
}


@pytest.mark.parametrize("target", SEEDS)
def test_no_input_leads_to_anything_but_a_result_or_one_line(target, artifact_path, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    SEEDS[target](corpus, artifact_path)
    command = [sys.executable, HARNESS, target, corpus, f"-max_total_time={SECONDS}"]
    # The seed of the fuzzer is its own; without a leak check, which NumPy's pools would fail.
    flags = ["-seed=1", "-max_len=400000", "-detect_leaks=0", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(
        [*map(str, command), *flags],
        capture_output=True,
        text=True,
        timeout=SECONDS + 120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    runs = re.search(r"Done (\d+) runs", done.stderr)
    assert runs is not None, done.stderr[-2000:]
    assert int(runs[1]) > 20
