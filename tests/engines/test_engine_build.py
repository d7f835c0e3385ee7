"""Engines built for real by TensorRT-RTX, which needs no GPU for that."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from onnx import helper

from gain_core import preset
from gain_core.errors import ArtifactError, ConfigError, EngineError
from gain_export.adaptive import add_adaptation
from gain_export.engine import EngineOptions, build_engine, check_engine
from gain_export.engine.compile import set_compatibility, set_target
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
    report = build_engine(artifact_path, options=SM89, on_step=steps.append)
    engine = read_engine(artifact_path.with_suffix(".engine"))
    library = pytest.importorskip(rtx)
    assert report.built
    assert report.header == engine.header
    assert engine.header.artifact_sha256 == load_artifact(artifact_path).sha256
    assert (engine.header.library, engine.header.version) == (rtx, library.__version__)
    assert engine.header.compute_capabilities == (89,)
    assert engine.header.profile == (1, 1, 4)
    assert engine.header.builder_level == 0
    assert engine.header.precision == "fp32"
    assert plan_version(engine.plan, rtx) == library.__version__
    assert report.size_bytes == report.path.stat().st_size > len(engine.plan)
    assert any("/" in step for step in steps)
    assert {file.name for file in artifact_path.parent.iterdir()} == {"net.onnx", "net.engine"}


def test_fixed_batch_is_the_whole_profile(artifact_path, rtx):
    model = onnx.load(artifact_path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    onnx.save(model, artifact_path)
    assert build_engine(artifact_path, options=SM89).header.profile == (3, 3, 3)
    assert not build_engine(artifact_path, options=SM89).built


def test_two_gpus_in_one_engine(artifact_path, rtx):
    options = EngineOptions(compute_capabilities=(89, 86, 89))
    assert build_engine(artifact_path, options=options).header.compute_capabilities == (86, 89)


def test_adaptive_graph(artifact_path, rtx):
    path = artifact_path.with_name("net.adaptive.onnx")
    config = preset("shift")
    add_adaptation(artifact_path, path, config=config, update_every=1, features_only=False)
    report = build_engine(path, options=SM89)
    assert report.path == path.with_suffix(".engine")
    header = read_engine(report.path).header
    assert header.profile == (1, 1, 4)
    assert header.verification["verified"] == "no"
    assert header.verification["reason"].startswith("net.adaptive.onnx is no artifact")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        pytest.param({"compute_capabilities": (75,)}, "compute_capabilities", id="capability"),
        pytest.param({"builder_level": 5}, "builder_level", id="level"),
        pytest.param({"flags": ("VERSION_COMPATIBLE",)}, "version_compatible", id="version-flag"),
        pytest.param({"flags": ("AMPERE_PLUS",)}, "hardware_compatible", id="hardware-flag"),
    ],
)
def test_stale_engine_is_named(artifact_path, lay_engine, changes, field):
    lay_engine(SM89, **changes)
    with pytest.raises(EngineError, match=f"does not fit: {field}: "):
        check_engine(artifact_path, options=SM89)


def test_stale_engine_is_rebuilt(artifact_path, lay_engine):
    lay_engine(SM89, profile=(1, 1, 2))
    again = build_engine(artifact_path, options=SM89)
    assert again.built
    assert again.header.profile == (1, 1, 4)


def test_missing_engine_is_refused_by_the_check(artifact_path, rtx):
    with pytest.raises(EngineError, match="no such file"):
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


def test_unknown_gpu_is_refused(artifact_path, rtx):
    options = EngineOptions(compute_capabilities=(90,))
    with pytest.raises(ConfigError, match=r"builds for .*86 89.*, got 90"):
        build_engine(artifact_path, options=options)


def test_hardware_compatibility_is_refused_where_gpus_are_named(artifact_path, rtx):
    options = replace(SM89, hardware_compatible=True)
    with pytest.raises(ConfigError, match=r"^hardware_compatible: .*name every compute-cap"):
        build_engine(artifact_path, options=options)
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


class Settings:
    """A builder's configuration with the names of `tensorrt` that widen where a plan runs."""

    hardware_compatibility_level = None

    def __init__(self) -> None:
        self.flags: list[str] = []

    def set_flag(self, flag: str) -> None:
        self.flags.append(flag)


def library_with(*flags: str) -> SimpleNamespace:
    return SimpleNamespace(
        __name__="tensorrt",
        __version__="10.3.0",
        BuilderFlag=SimpleNamespace(**{flag: flag for flag in flags}),
        HardwareCompatibilityLevel=SimpleNamespace(AMPERE_PLUS="level"),
    )


def test_compatibilities_are_set_where_they_are_asked_for():
    library, config = library_with("VERSION_COMPATIBLE"), Settings()
    assert set_compatibility(library, config, SM89) == ()
    assert (config.flags, config.hardware_compatibility_level) == ([], None)
    options = replace(SM89, hardware_compatible=True, version_compatible=True)
    assert set_compatibility(library, config, options) == ("AMPERE_PLUS",)
    assert config.flags == ["VERSION_COMPATIBLE"]
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
        set_target(library_with(), Settings(), options, gpu=None)
    assert "pip install -e '.[cuda12]' or '.[cuda13]'" in str(caught.value)
    # A capability that is given does not help, and neither does another device.
    assert "compute-capability" not in str(caught.value)
    assert "build on the device" not in str(caught.value)


def test_library_for_the_gpu_at_hand_builds_for_no_other():
    orin = Gpu("Orin", 87, 1 << 30)
    for capabilities in ((), (87,)):
        options = replace(SM89, compute_capabilities=capabilities)
        assert set_target(library_with(), Settings(), options, gpu=orin) == (87,)
    options = replace(SM89, compute_capabilities=(89, 86))
    with pytest.raises(ConfigError, match=r"\(87\), got 86 89; build on the device"):
        set_target(library_with(), Settings(), options, gpu=orin)


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
        pytest.param({"max_batch": 0}, "max_batch", id="no-batch"),
        pytest.param({"opt_batch": 9, "max_batch": 8}, "opt_batch", id="order"),
        pytest.param({"builder_level": 6}, "builder_level", id="level"),
        pytest.param({"workspace_bytes": 0}, "workspace_bytes", id="workspace"),
        pytest.param({"compute_capabilities": (8,)}, "compute_capabilities", id="capability"),
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
    model.graph.initializer[0].data_type = onnx.TensorProto.FLOAT16
    assert precision_of(model) is None


def test_precision_of_a_foreign_file_is_unknown(artifact_path):
    model = onnx.load(artifact_path)
    del model.metadata_props[:]
    assert precision_of(model) is None
