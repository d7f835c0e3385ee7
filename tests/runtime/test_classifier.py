"""The front door: one call from a file to a classifier that adapts."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gain_core import ConfigError, preset
from gain_export.adaptive import add_adaptation
from gain_runtime import load

README = Path(__file__).parents[2] / "README.md"


def images(count: int, *, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, size=(20 + n % 3, 31, 3), dtype=np.uint8) for n in range(count)]


@pytest.fixture(params=["artifact", "adaptive file"])
def file(request, tiny_artifact) -> Path:
    if request.param == "artifact":
        return tiny_artifact
    adaptive = tiny_artifact.with_name("tiny.adaptive.onnx")
    add_adaptation(
        tiny_artifact, adaptive, config=preset("shift"), update_every=16, warmup_frames=64
    )
    return adaptive


def test_one_image_and_a_batch_get_the_same_answers(file):
    with load(file) as one, load(file) as many:
        single = [one.step(image) for image in images(6)]
        batch = many.step(images(6))
        assert isinstance(single[0].label, str)
        assert batch.label == tuple(result.label for result in single)
        assert set(batch.label) <= set(one.labels)
        for row, result in enumerate(single):
            np.testing.assert_allclose(batch.probs[row], result.probs, atol=1e-6)
            np.testing.assert_array_equal(result.probs, result.source)
            assert result.strength == 0.0
        assert batch.probs.shape == (6, len(one.labels))


def test_what_was_learned_is_saved_and_continued(file, tmp_path):
    with load(file) as classifier:
        classifier.step(images(80))
        assert classifier.status().frames == 80
        classifier.save(tmp_path / "state")
        classifier.freeze()
        classifier.step(images(80, seed=1))
        assert classifier.status().frames == 80
        classifier.unfreeze()
        classifier.reset()
        assert classifier.status().frames == 0
    with load(file, state=tmp_path / "state") as again:
        assert again.status().frames == 80


def test_what_is_baked_in_cannot_be_given(tiny_artifact):
    adaptive = tiny_artifact.with_name("baked.adaptive.onnx")
    add_adaptation(tiny_artifact, adaptive, config=preset("shift"))
    with pytest.raises(ConfigError, match="config: fixed in"):
        load(adaptive, config=preset("shift"))


def test_the_readmes_lines_run(tiny_artifact, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), flags=re.DOTALL)
    assert len(blocks) == 1
    code = blocks[0].replace('"vit_b16.onnx"', repr(str(tiny_artifact)))
    exec(compile(code, "README.md", "exec"), {"images": images(3)})
    assert len(capsys.readouterr().out.splitlines()) == 3
