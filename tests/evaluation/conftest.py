"""What the evaluation's tests share: the shared data, and a small world that shifts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_text import network
from PIL import Image
from tiny_manifest import write_manifest

from gain_apps.evaluation.methods.protocol import Batch, Head
from gain_runtime.files.manifest import HeadLocation


@dataclass(frozen=True)
class World:
    """A head and batches of features of its classes under a shift."""

    head: Head
    batches: list[Batch]
    labels: list[np.ndarray]


@pytest.fixture
def world() -> World:
    """Six classes in eight dimensions, twelve batches, the shift changing half-way."""
    rng = np.random.default_rng(11)
    weight = rng.normal(size=(6, 8)).astype(np.float32)
    head = Head(weight=weight, bias=rng.normal(size=6).astype(np.float32) * 0.1)
    shifts = rng.normal(size=(2, 8)) * 0.8
    batches, labels = [], []
    for number in range(12):
        label = rng.integers(6, size=20)
        noise = rng.normal(size=(20, 8)) * 0.7
        features = (weight[label] + shifts[number // 6] + noise).astype(np.float32)
        batches.append(Batch(features=features, logits=head.logits(features)))
        labels.append(label)
    return World(head=head, batches=batches, labels=labels)


SIZE_PX = 32
COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}
WNIDS = {"n00000001": 0, "n00000002": 1, "n00000003": 2}


def save_quarters(
    path: Path, weight: np.ndarray, bias: np.ndarray, labels: Sequence[str], *, crop: float
) -> Path:
    """A network of 32 px: the mean colour of each quarter, (D,) = 12, and a linear head."""
    half = [SIZE_PX // 2] * 2
    model = network(
        f"pooled = AveragePool<kernel_shape={half}, strides={half}>(pixel_values);"
        "last = Transpose<perm=[0, 2, 3, 1]>(pooled); features = Flatten(last);"
        "logits = Gemm<transB=1>(features, weight, bias)",
        {"weight": weight, "bias": bias},
        inputs={"pixel_values": ["B", 3, SIZE_PX, SIZE_PX]},
        outputs={"features": ["B", 12], "logits": ["B", len(labels)]},
    )
    head = HeadLocation(weight="weight", layout="KD", bias="bias")
    write_manifest(model, labels, head=head, crop_fraction=crop)
    onnx.save(model, path)
    return path


@pytest.fixture(scope="session")
def write_quarters() -> Callable[..., Path]:
    """`save_quarters`, for tests in other files."""
    return save_quarters


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """A network that knows red, green and blue."""
    rows = np.array(list(COLOURS.values()), dtype=np.float32) / 255 - 0.5
    weight = np.tile(rows, (1, 4)).astype(np.float32) * 2
    bias = np.array([0.1, 0.0, -0.1], dtype=np.float32)
    return save_quarters(tmp_path / "colours.onnx", weight, bias, tuple(COLOURS), crop=0.875)


class Colours:
    """The classes of the colour network, and pictures of them."""

    names = tuple(COLOURS)

    @staticmethod
    def image(label: int, number: int, size: tuple[int, int] = (40, 48)) -> np.ndarray:
        """A noisy picture of one colour, (H, W, 3) uint8."""
        rng = np.random.default_rng((label, number))
        colour = np.array(list(COLOURS.values())[label])
        noise = rng.normal(scale=40, size=(*size, 3))
        return np.clip(colour + noise, 0, 255).astype(np.uint8)

    def save(self, path: Path, label: int, number: int, size: tuple[int, int] = (40, 48)) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(self.image(label, number, size)).save(path)

    def class_list(self, folder: Path) -> Path:
        rows = [f"{index}\t{wnid}\t{self.names[index]}" for wnid, index in WNIDS.items()]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "classes.tsv"
        path.write_text("\n".join(["index\twnid\tname", *rows]) + "\n")
        return path

    def folders(self, root: Path, per_class: int = 8) -> Path:
        for label, name in enumerate(self.names):
            for number in range(per_class):
                self.save(root / name / f"{number}.png", label, number)
        return root

    def tree(
        self,
        root: Path,
        domains: Sequence[str],
        *,
        severities: Sequence[str] = ("5",),
        per_class: int = 2,
        size: tuple[int, int] = (40, 48),
    ) -> Path:
        self.class_list(root)
        for domain in domains:
            for severity in severities:
                for wnid, label in WNIDS.items():
                    for number in range(per_class):
                        path = root / domain / severity / wnid / f"{number}.png"
                        self.save(path, label, number, size)
        return root


@pytest.fixture
def colours() -> Colours:
    return Colours()


@pytest.fixture
def colour_dump(tmp_path: Path) -> Path:
    """A feature dump of three classes and two domains besides clean."""
    rng = np.random.default_rng(5)
    weight = rng.normal(size=(3, 6)).astype(np.float32)
    labels = np.arange(90) % 3
    clean = weight[labels] + rng.normal(scale=0.5, size=(90, 6))
    path = tmp_path / "dump.npz"
    np.savez(
        path,
        weight=weight,
        bias=np.zeros(3, dtype=np.float32),
        labels=labels,
        clean=clean.astype(np.float16),
        fog=(clean + 1.0).astype(np.float16),
        frost=(clean - 0.7).astype(np.float16),
    )
    return path
