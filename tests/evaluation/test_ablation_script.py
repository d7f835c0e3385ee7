"""The script of the road-sign ablations: an interrupted run goes on where it was."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PLACE = ("streams", "csc")


def result(methods, *, seeds=(0, 1), images=4):
    """What `gain-eval` would have said."""
    run = {"accuracy": 50.0, "ece": 10.0, "nll": 2.0}
    row = {"runs": [run, run | {"accuracy": 52.0}], "step_ms": {"p50": 1.0}}
    return {
        "seeds": list(seeds),
        "versions": {},
        "model": {"path": "/somewhere/a.onnx", "sha256": "0"},
        "data": {"images": images},
        "bins": {"num_bins": 20},
        "counting": "mean over domains",
        "stream": {"batch_size": 64, "kind": "csc", "rounds": 10, "samples": 60},
        "methods": dict.fromkeys(("source", *methods), row),
    }


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("roadsigns_ablation")


def test_only_what_is_missing_is_run(script, monkeypatch, tmp_path):
    wanted = script.all_methods()
    assert len(set(wanted)) == len(wanted)
    target = tmp_path / "result.json"
    ran = []

    def evaluate(args, data, methods, /, *flags):
        ran.append(methods)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return result(methods)

    monkeypatch.setattr(script, "evaluate", evaluate)
    with pytest.raises(KeyboardInterrupt):
        script.complete(Namespace(json=target), tmp_path, {}, place=PLACE)
    kept = json.loads(target.read_text("utf-8"))
    assert list(kept["streams"]["csc"]["methods"]) == ["source", *wanted[: 2 * script.CHUNK]]
    assert kept["streams"]["csc"]["methods"]["source"]["accuracy"] == {"mean": 51.0, "std": 1.414}
    assert "/somewhere" not in target.read_text("utf-8")

    script.complete(Namespace(json=target), tmp_path, kept, place=PLACE)
    whole = json.loads(target.read_text("utf-8"))
    assert list(whole["streams"]["csc"]["methods"]) == ["source", *wanted]
    assert [name for part in (*ran[:2], *ran[3:]) for name in part] == list(wanted)


def test_rows_of_another_run_are_not_mixed_in(script, monkeypatch, tmp_path):
    target = tmp_path / "result.json"
    report = script.heading(result(())) | {"images": 5}
    monkeypatch.setattr(script, "evaluate", lambda args, data, methods, /, *flags: result(methods))
    with pytest.raises(SystemExit, match="images is 5, this run's 4"):
        script.complete(Namespace(json=target), tmp_path, report, place=PLACE)
    assert not target.exists()
