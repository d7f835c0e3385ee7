"""The command as it is typed: result, exit status, one line per error."""

import json
import logging
from pathlib import Path

import pytest

from gain_apps.bench import main
from gain_runtime.files.artifact import load_artifact

SMALL = ("--frames", "6", "--num-threads", "1")
PATTERN = "test://pattern?width=48&height=32"


def run(capsys, *args):
    """Exit status, stdout and stderr."""
    status = main([str(arg) for arg in args])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_json_on_stdout_says_everything(artifact_path, capsys):
    args = (artifact_path, PATTERN, *SMALL, "--batch-size=2", "--set=update-every=4", "--json=-")
    status, out, err = run(capsys, *args)
    assert status == 0
    result = json.loads(out)
    assert "adapted over frozen" in err
    assert result["artifact"]["sha256"] == load_artifact(artifact_path).sha256
    assert result["measured_frames"] == 6
    assert result["config"]["update_every"] == 4
    assert result["config"]["gain"]["method"] == "shift"
    assert result["command"].startswith("gain-bench ")
    assert result["compare"] is None
    assert result["memory_bytes"]["process_peak"] > 2**20
    assert result["memory_bytes"]["device"]["peak_used"] is None
    assert result["preprocess_threads"] == 1
    assert result["schema"] == 3
    for variant in ("frozen", "adapted"):
        total = result[variant]["stages_ms"]["total"]
        assert 0 < total["p50"] <= total["p90"] <= total["p99"] <= total["max"]
        assert result[variant]["rate_hz"] > 0
    rates = [result[variant]["rate_hz"] for variant in ("frozen", "adapted")]
    ratio = result["adapted_over_frozen"]["throughput_ratio"]
    assert ratio == pytest.approx(rates[1] / rates[0], rel=1e-3)
    assert result["device"]["cores"] >= 1


def test_a_disk_that_is_full_is_one_line(artifact_path, capsys, monkeypatch):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        status, _, err = run(capsys, artifact_path, PATTERN, *SMALL, "--json=-")
    assert status == 1
    assert err.splitlines()[-1].startswith("gain-bench: error: standard output: cannot be written")


def test_json_file_and_a_table_on_stdout(artifact_path, tmp_path, capsys):
    path = tmp_path / "result.json"
    status, out, _ = run(
        capsys, artifact_path, PATTERN, *SMALL, "--set=preset=paper", "--compare", "--json", path
    )
    assert status == 0
    result = json.loads(path.read_text())
    assert result["config"]["preset"] == "paper"
    assert "frames/s" in out
    assert "not measured: tensorrt" in out
    assert result["compare"][0]["name"] == "onnxruntime cpu"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        pytest.param(("--frames", "0"), "--frames: expected at least 1, got 0", id="frames"),
        pytest.param(("--batch-size", "0"), "--batch-size", id="batch-size"),
        pytest.param(("--set=update-every=0",), "--set update-every", id="update-every"),
        pytest.param(("--set=preset=none",), "none", id="preset"),
        pytest.param(("--device", "tpu"), "got 'tpu'", id="device"),
        pytest.param(("--timm", "x"), "--compare", id="timm"),
        pytest.param(("--compare", "--weights", "x"), "--timm", id="no timm"),
        pytest.param(("--compare", "--timm", "x", "--weights", "no.pt"), "no.pt", id="weights"),
        pytest.param(("--json", "no/such/folder/r.json"), "--json", id="json"),
        pytest.param(("test://nothing",), "unknown test source", id="source"),
        pytest.param(("no-such-clip.mp4",), "no-such-clip.mp4", id="clip"),
    ],
)
def test_an_error_is_one_line_and_status_1(artifact_path, capsys, args, said):
    status, out, err = run(capsys, artifact_path, *args)
    assert status == 1
    assert out == ""
    # What was logged before it, of the device, is no part of the error.
    *logged, error = err.splitlines()
    assert error.startswith("gain-bench: error: ")
    assert said in error
    assert all(line.startswith("INFO: ") for line in logged)


def test_why_a_device_is_passed_over_is_said(artifact_path, capsys):
    args = (artifact_path, PATTERN, *SMALL, "--device", "auto", "--json", "-")
    status, out, err = run(capsys, *args)
    assert status == 0
    assert "INFO: auto: tensorrt is passed over: " in err
    assert f"running on {json.loads(out)['provider']}" in err
    for name in ("gain_apps", "gain_runtime", "gain_core"):
        assert not any(
            type(handler).__name__ == "ConsoleHandler"
            for handler in logging.getLogger(name).handlers
        )


def test_a_file_that_is_no_artifact_is_one_line_and_none_is_overwritten(tmp_path, capsys):
    path = tmp_path / "text.onnx"
    path.write_text("not a network")
    for flags, said in (((), "text.onnx"), (("--json", path), "overwritten")):
        status, _, err = run(capsys, path, *flags)
        assert (status, err.count("\n")) == (1, 1)
        assert said in err


def test_an_interrupt_is_status_130(artifact_path, capsys, monkeypatch):
    def interrupted(*_args, **_settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("gain_apps.benchmarking.run.run_benchmark", interrupted)
    status, _, err = run(capsys, artifact_path)
    assert (status, err) == (130, "gain-bench: interrupted\n")
