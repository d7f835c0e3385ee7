"""Aliases, labels and preprocessing settings: the small files and flags around an export."""

import csv
from pathlib import Path

import onnx
import pytest

from gain_core.errors import ArtifactError, ConfigError
from gain_export.labels import (
    Alias,
    Labels,
    choose_labels,
    imagenet_labels,
    load_aliases,
    names_in_onnx,
    read_labels,
)
from gain_export.preprocessing import PreprocessOverrides, complete, from_timm_config

KNOWN = {
    "height_px": 32,
    "width_px": 48,
    "mean": [0.1, 0.2, 0.3],
    "std": [1, 1, 1],
    "crop_fraction": 0.9,
    "interpolation": "bicubic",
}


def test_every_alias_is_a_full_tag_timm_knows():
    timm = pytest.importorskip("timm", reason="the extra export is not installed")
    aliases = load_aliases()
    wanted = {"vit_b16", "vit_s16", "vit_ti16", "vit_l16", "deit_s16", "deit_b16", "deit3_b16"}
    wanted |= {"deit_b16_distilled", "swin_t", "convnext_t", "resnet50", "efficientnet_lite0"}
    assert wanted <= set(aliases)
    assert aliases["vit_b16"].model == "vit_base_patch16_224.augreg_in21k_ft_in1k"
    published = set(timm.list_pretrained())
    assert {alias.model for alias in aliases.values()} <= published


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("[a]\nmodel = ", ArtifactError, "expected TOML"),
        ("[a]\nmodle = 'x'", ConfigError, "with the key model"),
        ("a = 'x'", ConfigError, "with the key model"),
        ("[a]\nmodel = 'x'\nsize = 3", ConfigError, "unknown key size"),
        ("[a]\nmodel = 'x'\nweights_package = 'p'", ConfigError, "go together"),
        ("[a]\nmodel = 'x'\nweights_match = 'luck'", ConfigError, "name or order"),
    ],
)
def test_a_wrong_alias_file_is_named(tmp_path, text, error, reason):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(error, match=rf"mine\.toml.*{reason}"):
        load_aliases(tmp_path)


def test_an_alias_defined_twice_is_refused(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text("[a]\nmodel = 'x'\nmean = [0.5, 0.5, 0.5]\n")
    with pytest.raises(ConfigError, match="defined twice"):
        load_aliases(tmp_path)
    (tmp_path / "two.toml").unlink()
    assert load_aliases(tmp_path) == {"a": Alias(model="x", mean=(0.5, 0.5, 0.5))}


def test_imagenet_names_are_in_index_order(photographs):
    labels = imagenet_labels()
    assert len(set(labels)) == len(labels) == 1000
    with (photographs / "classes.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    differing = {
        int(row["index"])
        for row in rows
        if labels[int(row["index"])].lower().replace(" ", "_") != row["name"].lower()
    }
    # Two cranes, a corgi and a jacket, two maillots: told apart here.
    assert differing <= {134, 264, 517, 638, 639}


@pytest.mark.parametrize(
    ("content", "error", "reason"),
    [
        pytest.param(b"cat\n\ndog\n", ArtifactError, "line 2 is empty", id="gap"),
        pytest.param(b"cat\ndog\n", ConfigError, "expected 3 lines.*got 2", id="too-few"),
        pytest.param(b"\xff\xfe\x00", ArtifactError, "UTF-8", id="binary"),
    ],
)
def test_wrong_label_files_are_refused(tmp_path, content, error, reason):
    path = tmp_path / "labels.txt"
    path.write_bytes(content)
    with pytest.raises(error, match=reason):
        choose_labels(path, num_classes=3)


def test_labels_keep_their_order_and_drop_windows_endings(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_bytes(b"\xef\xbb\xbfzebra\r\n caf\xc3\xa9 \r\n\r\n")
    assert read_labels(path) == ("zebra", "café")


def test_imagenets_names_are_taken_only_where_it_is_known_to_be_that(caplog):
    unknown = choose_labels(None, num_classes=1000)
    assert unknown.names[0] == "class 0"
    assert "or --labels imagenet" in caplog.text
    caplog.clear()
    known = choose_labels(None, num_classes=1000, imagenet=True)
    asked = choose_labels(Path("imagenet"), num_classes=1000)
    assert known.names[0] == asked.names[0] == "tench"
    assert (known.source, asked.source) == ("ImageNet's", "ImageNet's, as --labels says")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("names", "{0: 'cat', 1: 'dog'}"),
        ("id2label", '{"1": "dog", "0": "cat"}'),
        ("class_names", '["cat", "dog"]'),
        ("classes", "cat, dog"),
        ("labels", "cat\ndog\n"),
    ],
)
def test_names_in_the_metadata_of_a_file_are_read(tmp_path, key, text):
    model = onnx.ModelProto()
    model.metadata_props.add(key=key, value=text)
    found = names_in_onnx(model, tmp_path / "net.onnx")
    assert found == Labels(names=("cat", "dog"), source=f"the file's own ({key})")
    assert choose_labels(None, num_classes=2, own=found) == found


def test_names_of_another_number_of_classes_are_not_used(caplog):
    own = Labels(names=("cat", "dog"), source="the file's own (names)")
    assert choose_labels(None, num_classes=3, own=own).names[0] == "class 0"
    assert "has 2 names for 3 classes" in caplog.text


def test_given_settings_win_over_known_ones():
    overrides = PreprocessOverrides(img_size=(64, 80), mean=(0.5, 0.5, 0.5), crop_mode="squash")
    spec = complete(overrides, KNOWN, what="net")
    assert (spec.height_px, spec.width_px, spec.crop_mode) == (64, 80, "squash")
    assert (spec.mean, spec.std, spec.crop_fraction) == ((0.5,) * 3, (1.0,) * 3, 0.9)


@pytest.mark.parametrize(
    ("missing", "flag"),
    [
        *(("height_px", "--img-size"), ("mean", "--mean"), ("std", "--std")),
        *(("crop_fraction", "--crop-pct"), ("interpolation", "--interpolation")),
    ],
)
def test_a_missing_setting_is_asked_for(missing, flag):
    known = {key: value for key, value in KNOWN.items() if key != missing}
    with pytest.raises(ConfigError, match=f"net: .* give {flag}, or --like"):
        complete(PreprocessOverrides(), known, what="net")


def test_out_of_range_settings_are_refused():
    for name, value in (("crop_fraction", 1.5), ("interpolation", "random")):
        with pytest.raises(ConfigError, match=name):
            complete(PreprocessOverrides(**{name: value}), KNOWN, what="net")


def test_timms_configuration_is_translated():
    config = {"input_size": (3, 32, 48), "crop_pct": 0.9, "crop_mode": "center"}
    config |= {name: KNOWN[name] for name in ("mean", "std", "interpolation")}
    spec = complete(PreprocessOverrides(), from_timm_config(config), what="net")
    assert spec == complete(PreprocessOverrides(), KNOWN, what="net")
    with pytest.raises(ConfigError, match="3 colour channels, got 1"):
        from_timm_config({**config, "input_size": (1, 32, 48)})
