"""Every command of `docs/reproduce.md`, run on tiny stand-ins for the data sets it names.

Commands that need a checkpoint of ViT-B/16 (the export, and those that train the network in torch)
are checked by their parsers only.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from gain_apps import evaluate, export
from gain_apps.corruptions import CORRUPTIONS
from gain_apps.evaluation.methods.registry import describe_method, parse_method
from gain_apps.evaluation.datasets import DOMAINS_3DCC
from gain_runtime.artifact import write_metadata
from gain_runtime.manifest import HeadLocation, Manifest, Preprocess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reproduce.md"
SIZE_PX = 32
NUM_CLASSES = 1000
FEATURE_DIM = 12
# ImageNet's indices of a handful of classes.
WNIDS = {"n01440764": 0, "n01443537": 1, "n01484850": 2, "n02099601": 207, "n15075141": 999}
PER_CLASS = 2
RECORD = {
    *("schema", "command", "model", "data", "stream", "severities", "seeds", "counting", "bins"),
    *("versions", "machine", "methods"),
}
SCORES = {"accuracy", "ece", "nll", "brier"}


def page_commands() -> list[list[str]]:
    """Arguments of every `gain-...` command of the page, in order."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("gain-")]


def option(command: list[str], name: str, default: str = "") -> str:
    """Value of a flag."""
    return command[command.index(name) + 1] if name in command else default


def is_parsed_only(command: list[str]) -> bool:
    """Whether a command needs a checkpoint."""
    return command[0] == "gain-export" or "--torch-weights" in command


def kind(command: list[str]) -> str:
    """First word after the program: a subcommand, or the artifact's path."""
    return command[1] if command[1] in ("compare", "report") else "run"


COMMANDS = page_commands()
EXPERIMENTS = [c for c in COMMANDS if kind(c) == "run" and not is_parsed_only(c)]


def write_artifact(path: Path) -> None:
    """A thousand classes on the mean colours of an image's quarters."""
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(NUM_CLASSES, FEATURE_DIM)).astype(np.float32)
    half = SIZE_PX // 2
    window = {"kernel_shape": [half, half], "strides": [half, half]}
    graph = helper.make_graph(
        [
            helper.make_node("AveragePool", ["pixel_values"], ["pooled"], **window),
            helper.make_node("Flatten", ["pooled"], ["features"]),
            helper.make_node("Gemm", ["features", "weight", "bias"], ["logits"], transB=1),
        ],
        "quarters",
        [_value("pixel_values", 3, SIZE_PX, SIZE_PX)],
        [_value("features", FEATURE_DIM), _value("logits", NUM_CLASSES)],
        [
            numpy_helper.from_array(weight, "weight"),
            numpy_helper.from_array(np.zeros(NUM_CLASSES, dtype=np.float32), "bias"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    manifest = Manifest(
        source="quarters",
        weights_sha256="0" * 64,
        input_name="pixel_values",
        features_name="features",
        logits_name="logits",
        num_classes=NUM_CLASSES,
        feature_dim=FEATURE_DIM,
        labels=tuple(f"class {index}" for index in range(NUM_CLASSES)),
        head=HeadLocation(weight="weight", layout="KD", bias="bias"),
        preprocess=Preprocess(
            height_px=SIZE_PX,
            width_px=SIZE_PX,
            mean=(0.5,) * 3,
            std=(0.5,) * 3,
            crop_fraction=1.0,
        ),
    )
    write_metadata(model, manifest)
    onnx.save(model, path)


def _value(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", *shape])


def save_classes(folder: Path, names: dict[str, int], *, shift: int) -> list[str]:
    """JPEGs in one folder per class; their `CLASS/FILE` names."""
    saved = []
    for name, label in names.items():
        (folder / name).mkdir(parents=True)
        for number in range(PER_CLASS):
            rng = np.random.default_rng((label, number))
            image = rng.integers(0, 200, size=(SIZE_PX, SIZE_PX, 3)) + shift
            file = f"{name}/ILSVRC2012_val_{number:08d}.JPEG"
            Image.fromarray(image.astype(np.uint8)).save(folder / file, format="JPEG")
            saved.append(file)
    return saved


def save_list(folder: Path) -> None:
    """A `classes.tsv`, so that no list of timm's is needed."""
    rows = [f"{index}\t{wnid}\tclass {index}" for wnid, index in WNIDS.items()]
    text = "\n".join(["index\twnid\tname", *rows]) + "\n"
    (folder / "classes.tsv").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the page's own paths exist."""
    root = tmp_path_factory.mktemp("reproduce")
    write_artifact(root / "vit_b16.onnx")
    for tree, domains in (("imagenet-c", CORRUPTIONS), ("imagenet-3dcc", DOMAINS_3DCC)):
        for number, domain in enumerate(domains):
            for severity in range(1, 6):
                folder = root / tree / domain / str(severity)
                saved = save_classes(folder, WNIDS, shift=severity * (number % 5))
        save_list(root / tree)
    (root / "imagenet_test_image_ids.txt").write_text("\n".join(saved) + "\n", encoding="utf-8")
    for folder in ("imagenet-r", "sketch"):
        save_classes(root / folder, WNIDS, shift=0)
        save_list(root / folder)
    variant = root / "imagenetv2-matched-frequency-format-val"
    save_classes(variant, {str(index): index for index in WNIDS.values()}, shift=0)
    (root / "results").mkdir()
    return root


@pytest.fixture
def in_world(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as the working directory."""
    monkeypatch.chdir(world)
    return world


def name_of(command: list[str]) -> str:
    return Path(option(command, "--json")).stem


@pytest.mark.parametrize("command", EXPERIMENTS, ids=name_of)
def test_experiment_runs_and_writes_its_result(in_world, command, capsys):
    assert evaluate.main(command[1:]) == 0, capsys.readouterr().err
    result = json.loads(Path(option(command, "--json")).read_text(encoding="utf-8"))
    assert set(result) == RECORD
    methods = option(command, "--methods").split(",")
    assert list(result["methods"]) == ["source", *methods]
    severities = option(command, "--severity", "5").split(",")
    seeds = int(option(command, "--seeds", "1"))
    for method, record in result["methods"].items():
        assert set(record) >= SCORES | {"domains", "runs", "cost", "step_ms", "whole_stream"}
        assert len(record["runs"]) == len(severities) * seeds
        assert ("gain" in record) == (
            method.startswith(("paper", "tracked")) and "--no-diagnosis" not in command
        )
    assert result["model"]["normalise"] == option(command, "--normalise", "timm")
    assert result["data"]["images"] == len(WNIDS) * PER_CLASS
    assert result["stream"]["kind"] == option(command, "--stream", "csc")
    assert result["stream"]["batch_size"] == int(option(command, "--batch-size", "64"))
    check_domains(command, result)


def check_domains(command: list[str], result: dict) -> None:
    """The data set's own domains, in its list's order where it has one."""
    expected = {"imagenet-c": CORRUPTIONS, "imagenet-3dcc": DOMAINS_3DCC}.get(command[2])
    assert result["stream"]["domains"] == list(expected or ("clean",))
    assert result["stream"]["order"] == ("list" if expected else "shuffled")
    if option(command, "--stream") == "lha":
        assert len(result["methods"]["paper"]["rounds"]) == 10
    subset = "--class-subset" in command
    assert result["model"]["num_classes"] == (len(WNIDS) if subset else NUM_CLASSES)


def test_gain_and_its_realisation_are_correlated_somehow(in_world):
    (command,) = [c for c in EXPERIMENTS if name_of(c) == "gain"]
    assert evaluate.main(command[1:]) == 0
    gain = json.loads(Path("results/gain.json").read_text())["methods"]["paper"]["gain"]
    assert -1 <= gain["pearson"] <= 1
    assert -1 <= gain["spearman"] <= 1


def test_report_and_comparison_take_earlier_results(in_world, capsys):
    later = [c for c in COMMANDS if kind(c) != "run"]
    assert [kind(c) for c in later] == ["report", "compare"]
    for name in ("gain", "c-csc", "c-csc-timm"):
        (command,) = [c for c in EXPERIMENTS if name_of(c) == name]
        assert evaluate.main(command[1:]) == 0
    report, compare = later
    assert evaluate.main(compare[1:]) == 0
    assert "source" in capsys.readouterr().out
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert evaluate.main(report[1:]) == 0
    assert "data:image/png;base64," in Path("results/gain.html").read_text(encoding="utf-8")


def test_commands_that_need_a_checkpoint_are_parsed():
    parsed_only = [c for c in COMMANDS if is_parsed_only(c)]
    assert [c[0] for c in parsed_only] == ["gain-export", "gain-eval", "gain-eval"]
    exported = export.build_parser().parse_args(parsed_only[0][1:])
    for command in parsed_only[1:]:
        args = evaluate.build_parser().parse_args(command[1:])
        assert str(args.torch_weights) == option(parsed_only[0], "--weights")
        assert args.model == "vit_b16.onnx"
        for method in args.methods:
            assert describe_method(parse_method(method))["name"] in method
    assert "vit_b16.onnx" in map(str, vars(exported).values())


def test_the_page_names_the_network_of_its_alias():
    tag = option(next(c for c in COMMANDS if "--torch-model" in c), "--torch-model")
    aliases = (PAGE.parents[1] / "models" / "vit.toml").read_text(encoding="utf-8")
    assert f'[vit_b16]\nmodel = "{tag}"' in aliases


def test_every_flag_of_the_page_exists():
    parsers = (evaluate.build_parser(), export.build_parser(), evaluate._report_parser())
    known = {flag for parser in parsers for flag in parser._option_string_actions}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 10
    assert named <= known


def test_every_result_is_written_once():
    names = [option(c, "--json") for c in COMMANDS if "--json" in c]
    assert len(names) == len(set(names))
    assert all(name.startswith("results/") for name in names)
