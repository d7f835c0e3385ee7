"""A Triton model repository: its config against the published protobuf and the ONNX file, and a
driver that does with both what Triton's sequence batcher does.

Triton itself has not run here. What the driver does is read from its documentation and sources.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from gain_apps.export import main
from gain_core import preset
from gain_export.adaptive import add_adaptation, triton
from gain_runtime.sessions.adaptive import AdaptiveSession

K, D, SIZE_PX = 6, 4, 8
DTYPES = {"TYPE_FP32": np.float32, "TYPE_INT64": np.int64, "TYPE_BOOL": np.bool_}


def read_config(folder: Path) -> Any:
    """The config as the published protobuf has it."""
    reason = "tritonclient[grpc], which brings Triton's protobuf, is not installed"
    client = pytest.importorskip("tritonclient.grpc", reason=reason)
    from google.protobuf import text_format

    text = (folder / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, client.model_config_pb2.ModelConfig())


def dtype_of(item: Any) -> type:
    """NumPy's type of an input, an output or a state."""
    enum = item.DESCRIPTOR.fields_by_name["data_type"].enum_type
    return DTYPES[enum.values_by_number[item.data_type].name]


class SequenceBatcher:
    """Triton with one instance of one model: knows its folder only."""

    def __init__(self, folder: Path) -> None:
        self.config = read_config(folder)
        self.session = onnxruntime.InferenceSession(
            (folder / "1" / "model.onnx").read_bytes(), providers=["CPUExecutionProvider"]
        )
        self.ranks = {item.name: len(item.shape) for item in self.session.get_inputs()}
        states = self.config.sequence_batching.state
        # Triton pairs inputs and outputs by their places among the sorted names.
        self.fed_back = dict(
            zip(
                sorted(item.input_name for item in states),
                sorted(item.output_name for item in states),
                strict=True,
            )
        )
        self.sequences: dict[str, dict[str, np.ndarray]] = {}

    def infer(
        self, camera: str, inputs: dict[str, np.ndarray], *, start: bool = False, end: bool = False
    ) -> dict[str, np.ndarray]:
        """One request of a sequence; all outputs, a scalar with one axis."""
        batching = self.config.sequence_batching
        if start:
            assert camera in self.sequences or len(self.sequences) < (
                batching.oldest.max_candidate_sequences * self.config.instance_group[0].count
            )
            self.sequences[camera] = {
                item.input_name: np.zeros(item.initial_state[0].dims, dtype_of(item))
                for item in batching.state
                if item.initial_state[0].zero_data
            }
        feeds = inputs | self.sequences[camera]
        for item in self.config.input:
            given = feeds[item.name]
            axes = zip(given.shape, item.dims, strict=True)
            assert all(dim in (-1, have) for have, dim in axes), item.name
            assert given.dtype == dtype_of(item)
        # The ONNX Runtime back end takes the axis of a scalar away, and gives it back.
        feeds = {
            name: array if self.ranks[name] else array.reshape(()) for name, array in feeds.items()
        }
        names = [item.name for item in self.config.output]
        outputs = dict(zip(names, self.session.run(names, feeds), strict=True))
        outputs = {name: np.atleast_1d(array) for name, array in outputs.items()}
        self.sequences[camera] = {name: outputs[new] for name, new in self.fed_back.items()}
        if end:
            del self.sequences[camera]
        return outputs


@pytest.fixture
def adaptive(make_artifact):
    """Write an adaptive file."""

    def write(name: str = "shift", **settings: Any) -> Path:
        weight = np.random.default_rng(2).normal(size=(K, D)).astype(np.float32)
        artifact = make_artifact(weight)
        path = artifact.with_name("net.adaptive.onnx")
        waits = {"update_every": 2, "warmup_frames": 3} | settings
        add_adaptation(artifact, path, config=preset(name), **waits)
        return path

    return write


def pixels(rng: np.random.Generator, frames: int) -> np.ndarray:
    return rng.normal(size=(frames, 3, SIZE_PX, SIZE_PX)).astype(np.float32)


BACKENDS = pytest.mark.parametrize(
    ("backend", "platform"), [("onnxruntime", "onnxruntime_onnx"), ("tensorrt", "tensorrt_plan")]
)


@BACKENDS
@pytest.mark.parametrize("name", ["shift", "paper-l2"])
def test_config_says_of_every_tensor_what_file_says(tmp_path, adaptive, name, backend, platform):
    folder = triton.write_triton(adaptive(name), tmp_path / "models", backend=backend)
    config = read_config(folder)
    model = onnx.load(folder / "1" / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    graph = model.graph
    assert (config.name, config.platform, config.backend) == ("net", platform, backend)
    assert config.max_batch_size == 0
    file = {value.name: value.type.tensor_type for value in (*graph.input, *graph.output)}

    def same(item: Any, name: str) -> None:
        kind = file[name]
        assert dtype_of(item) == onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        axes = [dim.dim_value or -1 for dim in kind.shape.dim]
        # Triton has no scalars: they are one number, which only ONNX Runtime's back end reshapes.
        assert axes or backend == "onnxruntime"
        assert list(item.dims) == (axes or [1]), name

    for item in (*config.input, *config.output):
        same(item, item.name)
    states = config.sequence_batching.state
    for item in states:
        same(item, item.input_name)
        same(item, item.output_name)
        same(item.initial_state[0], item.input_name)
        assert item.initial_state[0].zero_data
        assert item.initial_state[0].name
    # The back end counts: every input of the file is fed by the client, or is a state.
    fed = [item.name for item in config.input] + [item.input_name for item in states]
    assert sorted(fed) == sorted(value.name for value in graph.input)
    assert not config.sequence_batching.control_input
    # It also takes the shape of a scalar state from the outputs.
    assert {item.name for item in config.output} == {value.name for value in graph.output}


@BACKENDS
@pytest.mark.parametrize("name", ["shift", "paper-l2"])
def test_interleaved_sequences_are_each_an_adaptive_session(
    tmp_path, adaptive, name, backend, platform
):
    path = adaptive(name)
    server = SequenceBatcher(triton.write_triton(path, tmp_path / "models", backend=backend))
    rng = np.random.default_rng(3)
    cameras = {camera: AdaptiveSession(path) for camera in ("door", "yard", "roof")}
    started: set[str] = set()
    for turn in range(90):
        camera = ("door", "yard", "roof", "yard")[turn % 4]
        if turn == 60:  # a sequence that starts anew has forgotten
            started.discard("yard")
            cameras["yard"].reset()
        session, update = cameras[camera], turn % 7 != 5
        frames = pixels(rng, 1 + turn % 2)
        if turn == 41:
            frames[0, 0, 0, 0] = np.nan
        inputs = {"pixel_values": frames, "update": np.array([update])}
        got = server.infer(camera, inputs, start=camera not in started)
        started.add(camera)
        if turn == 41:
            assert not got["finite"][0]
            continue
        wanted = (session.step if update else session.predict)(frames)
        np.testing.assert_array_equal(got["label"], np.argmax(wanted.probs, axis=1))
        np.testing.assert_array_equal(got["probs"], wanted.probs)
    for camera, session in cameras.items():
        assert session.frames > 10
        for field, array in session.arrays().items():
            kept = server.sequences[camera][f"state.{field}"]
            np.testing.assert_array_equal(kept.reshape(array.shape), array, err_msg=field)
    server.infer("door", {"pixel_values": pixels(rng, 1), "update": np.array([True])}, end=True)
    assert set(server.sequences) == {"yard", "roof"}


@pytest.mark.parametrize("name", ["shift", "paper-l2"])
def test_the_parser_of_tensorrt_reads_what_the_config_says(tmp_path, adaptive, name):
    """TensorRT-RTX has the parser of TensorRT, and needs no GPU for it."""
    reason = "tensorrt_rtx is not installed (Python 3.10 to 3.13 on x86-64 only)"
    library = pytest.importorskip("tensorrt_rtx", reason=reason)
    folder = triton.write_triton(adaptive(name), tmp_path / "models", backend="tensorrt")
    config = read_config(folder)
    log = library.Logger(library.Logger.ERROR)
    flag = library.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    network = library.Builder(log).create_network(1 << int(flag))
    assert library.OnnxParser(network, log).parse_from_file(str(folder / "1" / "model.onnx"))
    ends = [*map(network.get_input, range(network.num_inputs))]
    ends += map(network.get_output, range(network.num_outputs))
    tensors = {tensor.name: tensor for tensor in ends}
    states = config.sequence_batching.state
    named = [(item.name, item) for item in (*config.input, *config.output)]
    named += [(item.input_name, item) for item in states]
    for tensor_name, item in named:
        tensor = tensors.pop(tensor_name)
        assert list(tensor.shape) == list(item.dims)
        assert library.nptype(tensor.dtype) == dtype_of(item)
        # Triton handles tensors that shapes are read from in another way.
        assert not tensor.is_shape_tensor
    assert tensors == {}
    # The command gives the range of every axis that is left open.
    (command,) = [
        line for line in (folder / "config.pbtxt").read_text().splitlines() if "trtexec" in line
    ]
    for bound, frames in (("min", 1), ("opt", 1), ("max", 8)):
        assert f"--{bound}Shapes=pixel_values:{frames}x3x{SIZE_PX}x{SIZE_PX}" in command


def test_the_command_writes_the_repository(tmp_path, adaptive, capsys):
    path, models = adaptive(), tmp_path / "models"
    assert main([str(path), "--triton", str(models), "--json=-"]) == 0
    assert json.loads(capsys.readouterr().out) == {"triton": str(models / "net")}
    assert (models / "net" / "1" / "model.onnx").read_bytes() == path.read_bytes()
    assert [item.name for item in models.iterdir()] == ["net"]
    (models / "net" / "2").mkdir()
    flags = [str(path), "--triton", str(models)]
    assert main(flags) == 1
    assert "net: exists already; --force replaces it" in capsys.readouterr().err
    assert main([*flags, "--force"]) == 0
    assert str(models / "net") in capsys.readouterr().err
    assert sorted(item.name for item in (models / "net").iterdir()) == ["1", "config.pbtxt"]
    assert [item.name for item in models.iterdir()] == ["net"]


def test_an_artifact_becomes_adaptive_and_a_model_for_a_back_end(tmp_path, adaptive, capsys):
    artifact, models = adaptive().with_name("tiny.onnx"), tmp_path / "models"
    chosen = ["--set", "triton-backend=tensorrt"]
    assert main([str(artifact), "--adaptive", *chosen]) == 1
    assert "triton-backend: is a setting of --triton" in capsys.readouterr().err
    assert main([str(artifact), "--adaptive", "--triton", str(models), *chosen]) == 0
    assert artifact.with_name("tiny.adaptive.onnx").is_file()
    assert read_config(models / "tiny").backend == "tensorrt"


@pytest.mark.parametrize(
    ("target", "flags", "message"),
    [
        ("tiny.onnx", [], "expected an adaptive file, got "),
        ("none.onnx", [], "no such file"),
        ("net.adaptive.onnx", ["--engine"], "--engine: has no effect"),
        ("net.adaptive.onnx", ["--precision", "fp16"], "--precision: has no effect"),
        ("net.adaptive.onnx", ["--output", "a"], "--output: has no effect"),
    ],
)
def test_what_is_no_adaptive_file_is_refused_in_one_line(
    tmp_path, adaptive, capsys, target, flags, message
):
    path = adaptive().with_name(target)
    assert main([str(path), "--triton", str(tmp_path / "models"), *flags]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert not (tmp_path / "models").exists()


def test_a_folder_that_is_no_model_is_never_replaced(tmp_path, adaptive, capsys):
    path = adaptive()
    (tmp_path / "models" / "net").mkdir(parents=True)
    (tmp_path / "models" / "net" / "letters.txt").touch()
    assert main([str(path), "--triton", str(tmp_path / "models"), "--force"]) == 1
    assert "got something else" in capsys.readouterr().err
    assert (tmp_path / "models" / "net" / "letters.txt").exists()
    assert main([str(path), "--triton", str(path)]) == 1
    assert "expected a folder for models, got a file" in capsys.readouterr().err


@pytest.mark.parametrize("there_before", [False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path, adaptive, monkeypatch, there_before):
    path, models = adaptive(), tmp_path / "models"
    if there_before:
        triton.write_triton(path, models)
    write = triton.write_atomically

    def full(to: Path, data: bytes) -> None:
        if to.name == "config.pbtxt":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(to, data)

    monkeypatch.setattr(triton, "write_atomically", full)
    with pytest.raises(triton.ArtifactError, match="No space left"):
        triton.write_triton(path, models, force=True)
    assert [item.name for item in models.iterdir()] == ["net"] * there_before
    assert not there_before or (models / "net" / "config.pbtxt").exists()
