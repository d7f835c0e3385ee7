"""The paper's suite and the commands of `docs/how-to/imagenet-c.md`, on tiny stand-ins.

Commands that need a checkpoint of ViT-B/16 (the export, and those that train the network in torch)
are checked by their parsers only.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gain_apps import evaluate, export
from gain_apps.evaluation.datasets import DOMAINS_3DCC
from gain_apps.evaluation.methods.registry import parse_method
from gain_apps.evaluation.suite_file import load_suite, suite_path
from gain_scenes.corruptions import CORRUPTIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "imagenet-c.md"
SIZE_PX = 32
# ImageNet's indices of a handful of classes.
WNIDS = {"n01440764": 0, "n01443537": 1, "n01484850": 2, "n02099601": 207, "n15075141": 999}


def page_commands() -> list[list[str]]:
    """Arguments of every `gain-...` command of the page, in order."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("gain-")]


COMMANDS = page_commands()


def save_classes(folder: Path, names: dict[str, int], *, shift: int) -> list[str]:
    """A JPEG in one folder per class; their `CLASS/FILE` names."""
    saved = []
    for name, label in names.items():
        (folder / name).mkdir(parents=True)
        image = np.random.default_rng(label).integers(0, 200, size=(SIZE_PX, SIZE_PX, 3)) + shift
        saved.append(f"{name}/ILSVRC2012_val_00000000.JPEG")
        Image.fromarray(image.astype(np.uint8)).save(folder / saved[-1], format="JPEG")
    return saved


def save_list(folder: Path) -> None:
    """A `classes.tsv`, so that no list of timm's is needed."""
    rows = [f"{index}\t{wnid}\tclass {index}" for wnid, index in WNIDS.items()]
    text = "\n".join(["index\twnid\tname", *rows]) + "\n"
    (folder / "classes.tsv").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, write_quarters: Callable[..., Path]) -> Path:
    """A folder in which the page's own paths exist."""
    root = tmp_path_factory.mktemp("reproduce")
    weight = np.random.default_rng(3).normal(size=(1000, 12)).astype(np.float32)
    labels = [f"class {index}" for index in range(1000)]
    write_quarters(root / "vit_b16.onnx", weight, np.zeros(1000, np.float32), labels, crop=1.0)
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
    return root


@pytest.fixture
def in_world(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as the working directory."""
    monkeypatch.chdir(world)
    return world


def command(*words: str) -> list[str]:
    """The one command of the page with these words, without the program's name."""
    (found,) = [c[1:] for c in COMMANDS if set(words) <= set(c)]
    return found


# Pairs that between them read every layout; the rest are more streams and methods of the same.
ONLY = "ImageNet-R,ImageNet-V2,ImageNet-Sketch,CSC,MDS,batch size 16"


def test_the_suite_runs_on_every_layout(in_world, capsys):
    flags = ("--only", ONLY, "--seeds", "1")
    assert evaluate.main([*command("suite"), *flags]) == 0, capsys.readouterr().err
    cells = json.loads(Path("imagenet.json").read_text(encoding="utf-8"))["cells"]
    suite = load_suite(suite_path("imagenet"))
    pairs = list(suite.pairs(ONLY.split(",")))
    assert list(cells) == [f"{each.name}, {stream.name}" for each, stream in pairs]
    assert {each.name for each, _ in pairs} == {each.name for each in suite.inputs}
    for each, stream in pairs:
        cell = cells[f"{each.name}, {stream.name}"]
        assert list(cell) == ["source", *(stream.methods or suite.methods)]
    assert cells["ImageNet-C, CSC"] != cells["ImageNet-C normalised as trained, CSC"]
    assert "| ImageNet-C, CSC (1) |" in Path("imagenet.md").read_text(encoding="utf-8")


def test_gain_report_and_comparison(in_world, capsys):
    assert evaluate.main(command("vit_b16.onnx", "gain.json")) == 0, capsys.readouterr().err
    gain = json.loads(Path("gain.json").read_text(encoding="utf-8"))
    assert -1 <= gain["methods"]["paper"]["gain"]["pearson"] <= 1
    assert gain["stream"]["domains"] == list(CORRUPTIONS)
    Path("efficiency.json").write_bytes(Path("gain.json").read_bytes())
    assert evaluate.main(command("compare")) == 0
    assert "source" in capsys.readouterr().out
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert evaluate.main(command("report")) == 0
    assert "data:image/png;base64," in Path("gain.html").read_text(encoding="utf-8")


def test_commands_that_need_a_checkpoint_are_parsed():
    exported = export.build_parser().parse_args(command("gain-export"))
    assert str(exported.target) == "vit_b16.onnx"
    args = evaluate.build_parser().parse_args(command("imagenet-c", "efficiency.json"))
    tag = args.timm
    assert args.weights == str(exported.weights)
    aliases = (PAGE.parents[2] / "models" / "vit.toml").read_text(encoding="utf-8")
    assert f'[vit_b16]\nmodel = "{tag}"' in aliases
    assert [parse_method(method).name for method in args.methods] == list(args.methods)
