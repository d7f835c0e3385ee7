"""The training script: a run that was interrupted ends where an undisturbed one ends."""

from __future__ import annotations

import importlib
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra `export`")
pytest.importorskip("timm", reason="training needs the extra `export`")

FOLDER = Path(__file__).resolve().parents[2] / "models" / "roadsigns"
ARGUMENTS = [
    *("--steps", "4", "--every", "2", "--chunk", "16", "--batch-size", "8", "--reuse", "1"),
    *("--warmup", "1", "--precision", "fp32", "--seed", "3"),
]


class OneThread(ThreadPoolExecutor):
    """Stands in for the drawing process."""

    def __init__(self, max_workers: int, *, mp_context: object) -> None:
        super().__init__(max_workers)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "train", raising=False)
    module = importlib.import_module("train")
    monkeypatch.setattr(module, "ProcessPoolExecutor", OneThread)
    monkeypatch.setattr(module, "VALIDATION_SAMPLES", 16)
    return module


def test_an_interrupted_run_ends_where_an_undisturbed_one_ends(script, tmp_path, monkeypatch):
    torch.set_num_threads(1)
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    kept: list[Path] = []
    write = script.save

    def save_and_keep(path: Path, record: dict[str, object]) -> None:
        write(path, record)
        kept.append(shutil.copy(path, tmp_path / f"step{record['step']}.pt"))

    monkeypatch.setattr(script, "save", save_and_keep)
    script.train(script.build_parser().parse_args([*ARGUMENTS, "--out", str(whole)]))
    resumed.mkdir()
    shutil.copy(tmp_path / "step2.pt", resumed / "checkpoint.pt")
    script.train(script.build_parser().parse_args([*ARGUMENTS, "--out", str(resumed)]))
    first, second = (
        torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (whole, resumed)
    )
    assert [path.name for path in kept] == ["step2.pt", "step4.pt", "step4.pt"]
    for name, weights in first["average"].items():
        np.testing.assert_allclose(weights, second["average"][name], atol=1e-6, err_msg=name)
    start = torch.load(tmp_path / "step2.pt", weights_only=True)["network"]["head.weight"]
    assert float((first["network"]["head.weight"] - start).abs().max()) > 1e-5


def test_pictures_move_but_keep_their_size(script):
    images = np.zeros((40, 64, 64, 3), np.uint8)
    images[:, 32, 32] = 255
    moved = script.shift(images, np.random.default_rng(0))
    places = {tuple(np.argwhere(picture[..., 0] == 255)[0]) for picture in moved}
    assert moved.shape == images.shape
    assert len(places) > 15
    assert all(29 <= row <= 35 and 29 <= column <= 35 for row, column in places)


def test_the_learning_rate_rises_and_falls(script):
    args = script.build_parser().parse_args(["--out", "x"])
    rates = [script.learning_rate(step, args) for step in range(args.steps)]
    assert max(rates) == pytest.approx(args.learning_rate)
    assert rates[0] < rates[args.warmup - 1] == pytest.approx(args.learning_rate)
    assert rates[-1] == pytest.approx(0.01 * args.learning_rate, rel=0.05)
