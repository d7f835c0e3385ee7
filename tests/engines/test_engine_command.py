"""gain-export --engine."""

import json
import subprocess
import sys

import onnx
import pytest
from PIL import Image

from gain_apps.export import main
from gain_export.engine import EngineOptions
from gain_export.images import synthetic_images
from gain_runtime.files.engine import read_engine

BUILD = ["--engine", "--set=compute-capability=89", "--set=builder-level=0"]
OPTIONS = EngineOptions(compute_capabilities=(89,), builder_level=0)


def test_engine_of_an_artifact(artifact_path, rtx, capsys):
    before = artifact_path.read_bytes()
    assert main([str(artifact_path), *BUILD, "--set=max-batch=2"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"engine     {artifact_path.with_suffix('.engine')} (")
    assert "fp32, compute capability 89, batches to 2" in said.err
    assert read_engine(artifact_path.with_suffix(".engine")).header.profile == (1, 1, 2)
    assert artifact_path.read_bytes() == before


def test_json_holds_the_header_and_only_force_builds_what_fits(artifact_path, rtx, capsys):
    records = []
    for flags in ([], [], ["--force"]):
        assert main([str(artifact_path), *BUILD, *flags, "--json=-"]) == 0
        records.append(json.loads(capsys.readouterr().out)["engine"])
    assert [record["built"] for record in records] == [True, False, True]
    assert records[0]["header"] == records[1]["header"]
    assert records[0]["header"]["compute_capabilities"] == [89]


def test_no_build_only_checks(artifact_path, lay_engine, capsys):
    assert main([str(artifact_path), *BUILD, "--set=build=false"]) == 1
    assert "no such file" in capsys.readouterr().err
    assert not artifact_path.with_suffix(".engine").exists()
    lay_engine(OPTIONS)
    assert main([str(artifact_path), *BUILD, "--set=build=false"]) == 0
    assert "still fits" in capsys.readouterr().err
    assert main([str(artifact_path), *BUILD, "--set=build=false", "--set=max-batch=3"]) == 1
    assert "profile: built with 1, 1, 8, expected 1, 1, 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param(
            ["--set=max-batch=2"], "--set max-batch: is a setting of --engine", id="batch"
        ),
        pytest.param(
            ["--set=version-compatible=true"],
            "--set version-compatible: is a setting of --engine",
            id="version",
        ),
        pytest.param(["--set=build=false"], "--set build: is a setting of --engine", id="no-build"),
        pytest.param(["--engine", "--set=max-batch=0"], "max_batch: expected", id="zero"),
    ],
)
def test_flags_are_checked_before_anything_is_written(flags, words, artifact_path, capsys):
    assert main([str(artifact_path), *flags]) == 1
    assert words in capsys.readouterr().err
    assert [file.name for file in artifact_path.parent.iterdir()] == ["net.onnx"]


@pytest.mark.parametrize(
    ("earlier", "flags", "words"),
    [
        pytest.param(
            ["--precision", "fp16"],
            ["--set=compute-capability=57"],
            "builds for",
            id="precision-gpu",
        ),
        pytest.param(
            ["--precision", "int8", "--calibrate", "photos"],
            ["--set=compute-capability=89", "--set=hardware-compatible=true"],
            "hardware_compatible: tensorrt_rtx",
            id="calibrate-compatibility",
        ),
    ],
)
def test_what_the_library_cannot_build_is_refused_before_earlier_steps(
    artifact_path, rtx, capsys, monkeypatch, earlier, flags, words
):
    monkeypatch.chdir(artifact_path.parent)
    folder = artifact_path.with_name("photos")
    folder.mkdir()
    for index, image in enumerate(synthetic_images(2, seed=5)):
        Image.fromarray(image).save(folder / f"{index}.png")
    before = artifact_path.read_bytes()
    assert main([str(artifact_path), *earlier, "--engine", *flags]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert artifact_path.read_bytes() == before
    assert [file.name for file in artifact_path.parent.glob("*.onnx")] == ["net.onnx"]


def test_what_the_library_cannot_build_is_refused_before_the_export(original_path, rtx, capsys):
    flags = ["--mean", *["0.5"] * 3, "--std", *["0.5"] * 3, "--crop-pct", "1"]
    flags += ["--interpolation", "bilinear", "--engine", "--set=hardware-compatible=true"]
    assert main([str(original_path), *flags, "--set=compute-capability=89"]) == 1
    assert "hardware_compatible: tensorrt_rtx" in capsys.readouterr().err
    assert [file.name for file in original_path.parent.glob("*.onnx")] == ["net.onnx"]


def test_without_a_library_one_line_says_what_to_install(artifact_path):
    script = (
        "import importlib.util as util, sys\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if 'tensorrt' in name else find(name, *rest)\n"
        "from gain_apps.export import main\n"
        f"sys.exit(main([{str(artifact_path)!r}, '--engine']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install -e '.[tensorrt]' or '.[tensorrt-rtx]'" in done.stderr


def test_fp32_builds_the_artifacts_own_engine(artifact_path, rtx, capsys):
    assert main([str(artifact_path), "--precision", "fp32", *BUILD]) == 0
    said = capsys.readouterr().err
    assert "is float32 already" in said
    assert ", fp32, compute capability 89" in said
    names = {file.name for file in artifact_path.parent.iterdir()}
    assert {name for name in names if name.startswith("net")} == {"net.onnx", "net.engine"}


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param([], id="fp16"),
        pytest.param(["--calibrate", "photos"], id="int8", marks=pytest.mark.slow),
    ],
)
def test_repeated_command_takes_what_fits_and_rebuilds_a_stale_engine(
    artifact_path, rtx, capsys, monkeypatch, flags
):
    monkeypatch.chdir(artifact_path.parent)
    (artifact_path.parent / "photos").mkdir()
    for index, image in enumerate(synthetic_images(3, seed=4)):
        Image.fromarray(image).save(artifact_path.parent / "photos" / f"{index}.png")
    precision = "int8" if flags else "fp16"
    command = ["net.onnx", "--precision", precision, *flags, *BUILD, "--allow-drift", "--json=-"]
    found = []
    for _ in range(3):
        assert main(command) == 0
        record = json.loads(capsys.readouterr().out)
        found.append((record["precision"]["written"], record["engine"]["built"]))
        if len(found) == 2:
            engine = artifact_path.with_name(f"net.{precision}.gain.engine")
            engine.write_bytes(b"stale")
    assert found == [(True, True), (False, False), (False, True)]


def test_lower_precision_of_another_artifact_is_refused_and_the_remedy_works(
    artifact_path, rtx, capsys
):
    command = [str(artifact_path), "--precision", "fp16", *BUILD]
    assert main(command) == 0
    model = onnx.load(artifact_path)
    model.doc_string = "changed"
    onnx.save(model, artifact_path)
    capsys.readouterr()
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "net.fp16.gain.onnx: exists already and does not fit: reference_sha256: " in error
    assert "--force makes it again" in error
    assert main([*command, "--force"]) == 0
