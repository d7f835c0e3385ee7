"""gain-export --engine, and how engines are compared with float32 before they are written.

No engine runs without a GPU, so ONNX Runtime stands in for TensorRT's session there: with the
artifact itself, with a network that computes something else, or with a failure. What is compared,
refused, recorded and said is the same. The last test runs real engines where there is a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image
from without import run_without

from gain_apps.export import main
from gain_core.errors import BackendUnavailableError, EngineError, ParityError
from gain_export.engine import EngineOptions, build_engine
from gain_export.precision import convert_precision
from gain_runtime.files.engine import read_engine
from gain_runtime.sessions.onnx import OnnxSession
from gain_runtime.sessions.session import Features
from gain_runtime.sessions.tensorrt_library import Gpu

SM89 = EngineOptions(compute_capabilities=(89,), max_batch=4, builder_level=0)
WIDE = replace(SM89, max_batch=8)
BUILD = ["--engine", "--set=compute-capability=89", "--set=builder-level=0"]
HAS_GPU = Path("/dev/nvidia0").exists()

RunAs = Callable[..., list[int]]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of five images."""
    folder, rng = tmp_path / "photos", np.random.default_rng(3)
    folder.mkdir()
    for index in range(5):
        pixels = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    return folder


@pytest.fixture
def run_as(monkeypatch: pytest.MonkeyPatch, rtx: str) -> RunAs:
    """Lets engines compute what an ONNX file does; `change` alters the outputs of a batch."""

    def start(path: Path, change: Callable[[Features], Features] | None = None) -> list[int]:
        batches: list[int] = []

        class Session(OnnxSession):
            def __init__(self, artifact: Any, /, *, engine: Path, allow_host_code: bool) -> None:
                assert read_engine(engine).header.artifact_sha256 == artifact.sha256
                super().__init__(path, num_threads=1)

            def infer(self, pixel_values: Any, /) -> Features:
                batches.append(len(pixel_values))
                outputs = super().infer(pixel_values)
                return outputs if change is None else change(outputs)

        monkeypatch.setattr("gain_export.engine.verify.TensorRTSession", Session)
        return batches

    return start


@pytest.fixture
def fail_with(monkeypatch: pytest.MonkeyPatch, rtx: str) -> Callable[[Exception], None]:
    """Lets sessions on engines fail."""
    name = "gain_export.engine.verify.TensorRTSession"
    return lambda err: monkeypatch.setattr(name, Mock(side_effect=err))


@pytest.fixture
def gpu_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Puts a GPU of a compute capability here, as far as verifying asks."""
    name = "gain_export.engine.verify.current_gpu"
    return lambda capability: monkeypatch.setattr(name, lambda: Gpu("a GPU", capability, 1 << 30))


def spoilt(path: Path) -> Path:
    """The same network with the rows of its head in another order."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.dims == [5, 8]:
            rows = numpy_helper.to_array(tensor)[::-1].copy()
            tensor.CopyFrom(numpy_helper.from_array(rows, tensor.name))
    target = path.with_name("spoilt.onnx")
    onnx.save(model, target)
    return target


def record_of(path: Path) -> dict[str, Any]:
    return dict(read_engine(path.with_suffix(".engine")).header.verification)


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
    lay_engine(replace(SM89, max_batch=8))
    assert main([str(artifact_path), *BUILD, "--set=build=false"]) == 0
    assert "still fits" in capsys.readouterr().err
    assert main([str(artifact_path), *BUILD, "--set=build=false", "--set=max-batch=3"]) == 1
    assert "profile: built with 1, 1, 8, expected 1, 1, 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--set=max-batch=2"], "--set max-batch: is a setting of --engine"),
        (["--set=version-compatible=true"], "--set version-compatible: is a setting of --engine"),
        (["--set=build=false"], "--set build: is a setting of --engine"),
        (["--engine", "--set=max-batch=0"], "max_batch: expected"),
    ],
)
def test_flags_are_checked_before_anything_is_written(flags, words, artifact_path, capsys):
    assert main([str(artifact_path), *flags]) == 1
    assert words in capsys.readouterr().err
    assert [file.name for file in artifact_path.parent.iterdir()] == ["net.onnx"]


@pytest.mark.parametrize(
    ("earlier", "flags", "words"),
    [
        (["--precision", "fp16"], ["--set=compute-capability=57"], "builds for"),
        (
            ["--precision", "int8", "--calibrate", "photos"],
            ["--set=compute-capability=89", "--set=hardware-compatible=true"],
            "hardware_compatible: tensorrt_rtx",
        ),
    ],
)
def test_what_the_library_cannot_build_is_refused_before_earlier_steps(
    artifact_path, photos, rtx, capsys, monkeypatch, earlier, flags, words
):
    monkeypatch.chdir(photos.parent)
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
    code = "from gain_apps.export import main\nsys.exit(main(sys.argv[1:]))\n"
    done = run_without(("tensorrt", "tensorrt_rtx"), code, artifact_path, "--engine")
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
    artifact_path, photos, rtx, capsys, monkeypatch, flags
):
    monkeypatch.chdir(photos.parent)
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


@pytest.mark.skipif(HAS_GPU, reason="there is a driver")
def test_engine_that_cannot_run_here_says_so_in_its_header_and_to_user(artifact_path, rtx, capsys):
    assert main([str(artifact_path), *BUILD]) == 0
    record = record_of(artifact_path)
    assert record["verified"] == "no"
    assert "no usable NVIDIA driver" in record["reason"]
    assert f"NOT VERIFIED: {record['reason']}" in capsys.readouterr().err


def test_engine_that_agrees_is_recorded_and_shown(artifact_path, run_as, capsys):
    batches, before = run_as(artifact_path), artifact_path.read_bytes()
    assert main([str(artifact_path), *BUILD, "--set=max-batch=4"]) == 0
    record = record_of(artifact_path)
    assert record["verified"] == "yes"
    assert (record["reference"], record["reference_precision"]) == ("net.onnx", "fp32")
    assert (record["images"], record["images_drawn"]) == (12, "yes")
    assert (record["top1_agreement"], record["accepted"]) == (1.0, "")
    assert record["features_cosine_min"] > 0.999999
    assert record["batch_sizes"] == "1, 4"
    assert set(batches) == {1, 4}
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"engine     {artifact_path.with_suffix('.engine')} (")
    assert "fp32, compute capability 89, batches to 4" in said.err
    assert "with net.onnx (fp32, on the CPU), batches of 1, 4, on 12 images drawn here" in said.err
    assert "no photographs: --verify-images DIR" in said.err
    assert artifact_path.read_bytes() == before


@pytest.mark.parametrize("flag", ["--verify-images", "--calibrate"])
def test_given_images_are_named_and_not_called_drawn(
    artifact_path, photos, run_as, lay_engine, capsys, flag
):
    lay_engine(WIDE)
    run_as(artifact_path)
    assert main([str(artifact_path), *BUILD, flag, str(photos)]) == 0
    record = record_of(artifact_path)
    assert (record["images"], record["image_source"]) == (5, "photos")
    assert record["images_drawn"] == "no"
    said = capsys.readouterr().err
    assert "on 5 images of photos: top-1" in said
    assert "drawn" not in said


def test_engine_below_the_bar_is_refused_and_nothing_is_written(artifact_path, run_as, capsys):
    run_as(spoilt(artifact_path))
    before = {file.name for file in artifact_path.parent.iterdir()}
    assert main([str(artifact_path), *BUILD]) == 1
    error = capsys.readouterr().err
    assert error.startswith("gain-export: net.engine: tensorrt_rtx 1.")
    assert "is too far from net.onnx on the CPU, on 12 images (drawn here, synthetic" in error
    assert "logits: smallest cosine" in error
    assert "--allow-drift" in error
    assert error.count("\n") == 1
    assert {file.name for file in artifact_path.parent.iterdir()} == before


def test_engine_that_is_wrong_in_large_batches_only_is_refused(artifact_path, run_as):
    def swap(outputs: Features) -> Features:
        return Features(outputs.features[::-1], outputs.logits[::-1])

    run_as(artifact_path, swap)
    with pytest.raises(ParityError, match="smallest cosine"):
        build_engine(artifact_path, options=SM89)


def test_values_that_are_not_finite_are_refused_even_where_drift_is_allowed(artifact_path, run_as):
    run_as(artifact_path, lambda outputs: Features(outputs.features, outputs.logits * np.nan))
    with pytest.raises(ParityError, match=r"net\.engine: logits: expected finite"):
        build_engine(artifact_path, options=SM89, allow_drift=True)
    assert not artifact_path.with_suffix(".engine").exists()


def test_fixed_batch_is_filled_up(artifact_path, run_as, photos):
    model = onnx.load(artifact_path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    onnx.save(model, artifact_path)
    batches = run_as(artifact_path)
    report = build_engine(artifact_path, options=SM89, verify_images=photos)
    assert report.header.profile == (3, 3, 3)
    assert not build_engine(artifact_path, options=SM89).built
    assert batches == [3, 3]
    record = record_of(artifact_path)
    assert (record["images"], record["batch_sizes"]) == (5, "3")
    assert record["logits_max_abs_diff"] < 1e-5


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_lower_precision_is_compared_with_float32(artifact_path, photos, run_as, precision):
    low = convert_precision(
        artifact_path, precision, calibration_images=photos, allow_drift=True
    ).path
    run_as(artifact_path)
    build_engine(low, options=SM89, verify_images=photos)
    record = record_of(low)
    assert (record["reference"], record["reference_precision"]) == ("net.onnx", "fp32")
    assert record["logits_max_abs_diff"] < 1e-5


def test_without_its_float32_artifact_the_file_itself_is_the_reference(artifact_path, run_as):
    low = convert_precision(artifact_path, "fp16").path
    model = onnx.load(artifact_path)
    model.doc_string = "changed since"
    onnx.save(model, artifact_path)
    run_as(low)
    for _ in range(2):
        build_engine(low, options=SM89, force=True)
        record = record_of(low)
        assert record["reference"] == "net.fp16.gain.onnx"
        assert record["reference_precision"] == "fp16"
        artifact_path.unlink(missing_ok=True)


def test_bfloat16_without_its_float32_artifact_is_not_verified(artifact_path, run_as):
    run_as(artifact_path)
    low = convert_precision(artifact_path, "bf16").path
    artifact_path.rename(artifact_path.with_name("moved.onnx"))
    run_as(artifact_path.with_name("moved.onnx"))
    build_engine(low, options=SM89)
    assert "ONNX Runtime cannot run net.bf16.gain.onnx on the CPU" in record_of(low)["reason"]


def test_engine_for_another_gpu_is_written_unverified(artifact_path, run_as, gpu_of):
    gpu_of(90)
    batches = run_as(artifact_path)
    build_engine(artifact_path, options=SM89)
    assert "another GPU" in record_of(artifact_path)["reason"]
    assert "built for 89, expected 90" in record_of(artifact_path)["reason"]
    assert batches == []


def test_engine_that_fails_on_its_own_gpu_is_refused(artifact_path, fail_with, gpu_of):
    gpu_of(89)
    fail_with(EngineError("illegal\x1b access"))
    with pytest.raises(EngineError, match="does not run on the GPU that it is for"):
        build_engine(artifact_path, options=SM89)
    assert not artifact_path.with_suffix(".engine").exists()
    build_engine(artifact_path, options=SM89, allow_drift=True)
    assert "illegal? access" in record_of(artifact_path)["reason"]


@pytest.mark.parametrize("kind", [EngineError, BackendUnavailableError])
def test_failure_where_no_gpu_can_be_asked_is_recorded(artifact_path, fail_with, kind, monkeypatch):
    monkeypatch.setattr("gain_export.engine.verify.current_gpu", lambda: None)
    fail_with(kind("CuPy is missing"))
    build_engine(artifact_path, options=SM89)
    assert record_of(artifact_path) == {"verified": "no", "reason": "CuPy is missing"}


def test_engine_from_elsewhere_is_verified_where_it_can_be(
    artifact_path, photos, fail_with, run_as, lay_engine
):
    fail_with(BackendUnavailableError("no driver"))
    plan = lay_engine(SM89).plan
    assert build_engine(artifact_path, options=SM89).header.verification["verified"] == "no"
    batches = run_as(artifact_path)
    later = build_engine(artifact_path, options=SM89)
    assert (later.built, later.header.verification["verified"]) == (False, "yes")
    assert read_engine(later.path).plan == plan
    assert read_engine(later.path).header == later.header
    assert later.size_bytes == later.path.stat().st_size
    batches.clear()
    assert build_engine(artifact_path, options=SM89).header == later.header
    assert batches == []
    build_engine(artifact_path, options=SM89, verify_images=photos)
    assert record_of(artifact_path)["image_source"] == "photos"


def test_drift_is_shown_and_not_accepted_for_ever(artifact_path, run_as, lay_engine, capsys):
    lay_engine(WIDE)
    run_as(spoilt(artifact_path))
    assert main([str(artifact_path), *BUILD, "--allow-drift"]) == 0
    record = record_of(artifact_path)
    assert record["verified"] == "yes"
    assert "logits: smallest cosine" in record["accepted"]
    assert f"accepted   {record['accepted']}" in capsys.readouterr().err
    before = artifact_path.with_suffix(".engine").read_bytes()
    with pytest.raises(ParityError, match="too far"):
        build_engine(artifact_path, options=WIDE)
    assert artifact_path.with_suffix(".engine").read_bytes() == before
    assert not build_engine(artifact_path, options=WIDE, allow_drift=True).built


def test_verified_engine_keeps_its_record_where_it_cannot_run(
    artifact_path, photos, run_as, lay_engine, fail_with, caplog
):
    lay_engine(SM89)
    run_as(artifact_path)
    build_engine(artifact_path, options=SM89)
    before = record_of(artifact_path)
    fail_with(BackendUnavailableError("no driver"))
    build_engine(artifact_path, options=SM89, verify_images=photos)
    assert record_of(artifact_path) == before
    assert "is not verified on photos here: no driver" in caplog.text


def test_code_in_an_engine_from_elsewhere_is_not_run(artifact_path, run_as, lay_engine):
    lay_engine(SM89, flags=(*lay_engine(SM89).header.flags, "VERSION_COMPATIBLE"))
    batches = run_as(artifact_path)
    options = replace(SM89, version_compatible=True)
    assert not build_engine(artifact_path, options=options).built
    assert record_of(artifact_path)["verified"] == "no"
    assert batches == []


@pytest.mark.gpu
@pytest.mark.trt
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_real_engines_agree_with_float32(roadsigns_path, photos, precision):
    path = roadsigns_path
    if precision != "fp32":
        path = convert_precision(path, precision, calibration_images=photos, allow_drift=True).path
    record = build_engine(path, verify_images=photos).header.verification
    assert record["verified"] == "yes"
    assert record["reference_precision"] == "fp32"
    assert record["accepted"] == ""
