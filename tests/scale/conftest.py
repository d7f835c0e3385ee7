"""A Ray cluster of this machine with two workers, and the road-sign network."""

from __future__ import annotations

from pathlib import Path

import pytest

from gain_apps.export import main as export

ROOT = Path(__file__).resolve().parents[2]
ROADSIGNS = ROOT / "models" / "roadsigns"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """The address of the cluster."""
    ray = pytest.importorskip("ray", reason="not installed: extra ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="warning")
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="session")
def roadsigns(tmp_path_factory):
    """The artifact, as the demo exports it, but not calibrated."""
    path = tmp_path_factory.mktemp("artifact") / "roadsigns.gain.onnx"
    flags = "--mean 0.5 0.5 0.5 --std 0.5 0.5 0.5 --crop-pct 1 --crop-mode squash"
    labels = str(ROADSIGNS / "labels.txt")
    source = str(ROADSIGNS / "roadsigns.onnx")
    given = [source, "--output", str(path), "--labels", labels, *flags.split()]
    assert export([*given, "--interpolation", "bicubic"]) == 0
    return path
