"""Engines built for real by TensorRT-RTX, which needs no GPU for that. None is run here."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from gain_core import preset
from gain_core.errors import ArtifactError, ConfigError, EngineError
from gain_export.adaptive import add_adaptation
from gain_export.engine import EngineOptions, EngineReport, build_engine, check_engine
from gain_export.engine.compile import set_compatibility, set_target
from gain_export.images import synthetic_images
from gain_export.precision import Precision, convert_precision
from gain_export.precision.lower import precision_of
from gain_runtime.files.artifact import load_artifact
from gain_runtime.files.engine import plan_version, read_engine
from gain_runtime.sessions.tensorrt_library import Gpu

SM89 = EngineOptions(compute_capabilities=(89,), max_batch=4, builder_level=0)


def children() -> set[int]:
    """Processes this one started and has not waited for."""
    lists = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for children in lists for pid in children.read_text().split()}


def test_engine_states_what_it_was_made_from(artifact_path, rtx):
    steps: list[str] = []
    # Two GPUs in one engine.
    options = replace(SM89, compute_capabilities=(89, 86, 89))
    report = build_engine(artifact_path, options=options, on_step=steps.append)
    engine = read_engine(artifact_path.with_suffix(".engine"))
    library = pytest.importorskip(rtx)
    assert report.built
    assert report.header == engine.header
    assert engine.header.artifact_sha256 == load_artifact(artifact_path).sha256
    assert (engine.header.library, engine.header.version) == (rtx, library.__version__)
    assert engine.header.compute_capabilities == (86, 89)
    assert engine.header.profile == (1, 1, 4)
    assert engine.header.builder_level == 0
    assert engine.header.precision == "fp32"
    assert plan_version(engine.plan, rtx) == library.__version__
    assert report.size_bytes == report.path.stat().st_size > len(engine.plan)
    assert any("/" in step for step in steps)
    assert {file.name for file in artifact_path.parent.iterdir()} == {"net.onnx", "net.engine"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"compute_capabilities": (75,)}, "compute_capabilities"),
        ({"builder_level": 5}, "builder_level"),
        ({"flags": ("VERSION_COMPATIBLE",)}, "version_compatible"),
        ({"flags": ("AMPERE_PLUS",)}, "hardware_compatible"),
    ],
)
def test_stale_engine_is_named(artifact_path, lay_engine, changes, field):
    lay_engine(SM89, **changes)
    with pytest.raises(EngineError, match=f"does not fit: {field}: "):
        check_engine(artifact_path, options=SM89)


def test_unreadable_operator_is_reported(artifact_path, rtx):
    model = onnx.load(artifact_path)
    output = model.graph.node[-1].output[0]
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(helper.make_node("Nonsense", ["before"], [output], domain="nowhere"))
    model.opset_import.append(helper.make_opsetid("nowhere", 1))
    onnx.save(model, artifact_path)
    with pytest.raises(EngineError, match=r"cannot read it: .*Nonsense") as caught:
        build_engine(artifact_path, options=SM89)
    assert "\n" not in str(caught.value)
    assert not artifact_path.with_suffix(".engine").exists()


def test_version_compatible_plan_is_built_or_its_missing_runtime_is_named(artifact_path, rtx):
    options = replace(SM89, version_compatible=True)
    try:
        said = str(build_engine(artifact_path, options=options).header.version_compatible)
    except EngineError as err:
        said = str(err)
    # TensorRT-RTX's wheel comes without that runtime.
    assert said == "True" or "libnvinfer_lean" in said
    assert artifact_path.with_suffix(".engine").exists() == (said == "True")


def library_with(*flags: str) -> SimpleNamespace:
    return SimpleNamespace(
        __name__="tensorrt",
        __version__="10.3.0",
        BuilderFlag=SimpleNamespace(**{flag: flag for flag in flags}),
        HardwareCompatibilityLevel=SimpleNamespace(AMPERE_PLUS="level"),
    )


def test_compatibilities_are_set_where_they_are_asked_for():
    library, flags = library_with("VERSION_COMPATIBLE"), []
    config = SimpleNamespace(hardware_compatibility_level=None, set_flag=flags.append)
    assert set_compatibility(library, config, SM89) == ()
    assert (flags, config.hardware_compatibility_level) == ([], None)
    options = replace(SM89, hardware_compatible=True, version_compatible=True)
    assert set_compatibility(library, config, options) == ("AMPERE_PLUS",)
    assert flags == ["VERSION_COMPATIBLE"]
    assert config.hardware_compatibility_level == "level"


@pytest.mark.parametrize("option", ["hardware_compatible", "version_compatible"])
def test_library_without_the_name_is_named(option):
    options = replace(SM89, **{option: True})
    with pytest.raises(ConfigError, match=f"^{option}: tensorrt 10.3.0 has no such"):
        set_compatibility(library_with(), SimpleNamespace(), options)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU to build for")
def test_gpu_must_be_named_where_there_is_none(artifact_path, rtx):
    with pytest.raises(
        ConfigError, match=r"CuPy: .*cuda12.*; or give one, as --set compute-capability"
    ):
        build_engine(artifact_path)


@pytest.mark.parametrize("capabilities", [(), (87,)])
def test_library_for_the_gpu_at_hand_names_cupy_where_none_can_be_asked(capabilities):
    options = replace(SM89, compute_capabilities=capabilities)
    with pytest.raises(ConfigError, match=r"tensorrt builds for the GPU at hand") as caught:
        set_target(library_with(), SimpleNamespace(), options, gpu=None)
    assert "pip install -e '.[cuda12]' or '.[cuda13]'" in str(caught.value)
    # A capability that is given does not help, and neither does another device.
    assert "compute-capability" not in str(caught.value)
    assert "build on the device" not in str(caught.value)


def test_library_for_the_gpu_at_hand_builds_for_no_other():
    orin = Gpu("Orin", 87, 1 << 30)
    for capabilities in ((), (87,)):
        options = replace(SM89, compute_capabilities=capabilities)
        assert set_target(library_with(), SimpleNamespace(), options, gpu=orin) == (87,)
    options = replace(SM89, compute_capabilities=(89, 86))
    with pytest.raises(ConfigError, match=r"\(87\), got 86 89; build on the device"):
        set_target(library_with(), SimpleNamespace(), options, gpu=orin)


def test_missing_artifact_is_refused(tmp_path, rtx):
    with pytest.raises(ArtifactError, match="no such file"):
        build_engine(tmp_path / "net.onnx", options=SM89)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the process by /proc")
def test_killed_process_is_reported(artifact_path, rtx):
    before = children()

    def kill(step: str) -> None:
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(EngineError, match=r"killed \(SIGKILL; .*out of memory\)") as caught:
        build_engine(artifact_path, options=SM89, on_step=kill)
    assert "max-batch" in str(caught.value)
    assert {file.name for file in artifact_path.parent.iterdir()} == {"net.onnx"}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the process by /proc")
def test_interrupt_ends_the_process_and_leaves_nothing(artifact_path, rtx):
    before = children()
    running: set[int] = set()

    def interrupt(step: str) -> None:
        running.update(children() - before)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_engine(artifact_path, options=SM89, on_step=interrupt)
    assert running
    assert not children() - before
    assert {file.name for file in artifact_path.parent.iterdir()} == {"net.onnx"}


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"max_batch": 0}, "max_batch"),
        ({"opt_batch": 9, "max_batch": 8}, "opt_batch"),
        ({"builder_level": 6}, "builder_level"),
        ({"workspace_bytes": 0}, "workspace_bytes"),
        ({"compute_capabilities": (8,)}, "compute_capabilities"),
    ],
)
def test_options_are_checked(values, name):
    with pytest.raises(ConfigError, match=name):
        EngineOptions(**values)


def test_precision_is_what_the_file_records(artifact_path):
    model = onnx.load(artifact_path)
    assert precision_of(model) == "fp32"
    record = next(item for item in model.metadata_props if item.key == "gain.verification")
    record.value = '{"precision": "bf16"}'
    assert precision_of(model) == "bf16"
    for damaged in ('{"precision"', "[]", '{"precision": "fp7"}'):
        record.value = damaged
        assert precision_of(model) in (None, "fp32")
    model.graph.initializer[0].data_type = TensorProto.FLOAT16
    assert precision_of(model) is None
    foreign = onnx.load(artifact_path)
    del foreign.metadata_props[:]
    assert precision_of(foreign) is None


# Engines of what the export writes: every precision, larger networks, GAIN over lower precision.
CAPABILITIES = (80, 86, 89, 120)
ALL_GPUS = EngineOptions(compute_capabilities=CAPABILITIES, opt_batch=4, max_batch=8)


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images to calibrate and verify on; what they show does not matter here."""
    folder = tmp_path_factory.mktemp("drawn")
    for index, image in enumerate(synthetic_images(4)):
        Image.fromarray(image).save(folder / f"{index}.png")
    return folder


def lowered(path: Path, precision: Precision, images: Path) -> Path:
    """The file in lower precision; on few images, and in bf16 on a CPU, it could miss its bar."""
    report = convert_precision(path, precision, calibration_images=images, allow_drift=True)
    return report.path


def assert_weights_stay_low(report: EngineReport, full: EngineReport, precision: Precision) -> None:
    """The plan holds the weights as the file does: the library has not widened them again."""
    if precision != "int8":
        assert report.size_bytes < 0.8 * full.size_bytes
        return
    # An int8 plan is larger than its weights explain, so its size would tell little.
    initializers = onnx.load(report.path.with_suffix(".onnx")).graph.initializer
    weights = [item for item in initializers if item.data_type == TensorProto.INT8]
    largest = max(weights, key=lambda item: len(item.raw_data)).raw_data
    assert len(largest) > 100_000
    assert largest[:256] in read_engine(report.path).plan


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_vision_transformer_in_lower_precision(roadsigns_path, drawn, rtx, precision):
    full = build_engine(roadsigns_path, options=ALL_GPUS)
    low = build_engine(lowered(roadsigns_path, precision, drawn), options=ALL_GPUS)
    for header in (full.header, low.header):
        assert (header.compute_capabilities, header.profile) == (CAPABILITIES, (1, 4, 8))
        assert header.log_tail == ()
    assert (full.header.precision, low.header.precision) == ("fp32", precision)
    assert_weights_stay_low(low, full, precision)


@pytest.mark.parametrize(
    "precision", [None, *(pytest.param(name, marks=pytest.mark.slow) for name in ("fp16", "int8"))]
)
def test_adaptive_graph(artifact_path, drawn, rtx, precision):
    source = artifact_path if precision is None else lowered(artifact_path, precision, drawn)
    path = artifact_path.with_name("net.adaptive.onnx")
    config = preset("shift")
    add_adaptation(source, path, config=config, update_every=1, features_only=False)
    report = build_engine(path, options=SM89)
    assert report.path == path.with_suffix(".engine")
    header = read_engine(report.path).header
    assert (header.profile, header.precision) == ((1, 1, 4), precision or "fp32")
    assert header.verification["verified"] == "no"
    assert header.verification["reason"].startswith("net.adaptive.onnx is no artifact")
