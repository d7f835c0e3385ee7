"""Data sets on disk: layouts, labels, order, and what is said when something is missing."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gain_apps.evaluation.datasets import DOMAINS_3DCC, open_data
from gain_apps.evaluation.feature_dump import load_dump
from gain_core.errors import ArtifactError, ConfigError

NAMES = ("red", "green", "blue")
WNIDS = {"n00000001": 0, "n00000002": 1, "n00000003": 2}


def test_folders_named_after_classes(tmp_path, colours):
    for label, name in enumerate(NAMES):
        for number in range(label + 1):
            colours.save(tmp_path / name / f"{number}.png", label, number)
    data = open_data(str(tmp_path), NAMES)
    # Folders by name: blue (2), green (1), red (0).
    assert_array_equal(data.labels, [2, 2, 2, 1, 1, 0])
    assert_array_equal(data.load(3, "clean", 0.0), colours.image(1, 0))
    assert data.domains is None
    assert data.default_order == "shuffled"


def test_folders_named_after_indices_are_numbers_not_words(tmp_path, colours):
    names = [f"class {index}" for index in range(12)]
    for index in range(12):
        colours.save(tmp_path / str(index) / "a.png", index % 3, index)
    data = open_data(str(tmp_path), names)
    assert_array_equal(data.labels, [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9])
    assert_array_equal(data.load(2, "clean", 0.0), colours.image(10 % 3, 10))


def test_flat_folder_with_class_list(tmp_path, colours):
    colours.class_list(tmp_path)
    for wnid, label in WNIDS.items():
        colours.save(tmp_path / f"{wnid}_{NAMES[label]}.png", label, 0)
    data = open_data(str(tmp_path), NAMES)
    assert_array_equal(data.labels, [0, 1, 2])


def test_class_list_may_lie_elsewhere(tmp_path, colours):
    colours.class_list(tmp_path / "lists")
    for wnid, label in WNIDS.items():
        colours.save(tmp_path / "data" / wnid / "a.png", label, 0)
    with pytest.raises(ArtifactError, match=r"3 of 3 class names are none .* --set class-file"):
        open_data(str(tmp_path / "data"), NAMES)
    data = open_data(str(tmp_path / "data"), NAMES, class_file=tmp_path / "lists" / "classes.tsv")
    assert_array_equal(data.labels, [0, 1, 2])


def test_thousand_wnid_folders_are_imagenet(tmp_path, colours):
    wnids = [f"n{number:08d}" for number in range(1000)]
    colours.save(tmp_path / wnids[0] / "a.png", 0, 0)
    for wnid in wnids[1:]:
        (tmp_path / wnid).mkdir()
        (tmp_path / wnid / "a.png").symlink_to(tmp_path / wnids[0] / "a.png")
    data = open_data(str(tmp_path), [f"class {index}" for index in range(1000)])
    assert_array_equal(data.labels, np.arange(1000))


def test_subset_of_imagenet_maps_onto_its_thousand_classes(tmp_path, colours):
    pytest.importorskip("timm", reason="timm, whose list of WordNet ids this reads, is absent")
    for wnid in ("n01443537", "n01484850", "n02802426"):
        colours.save(tmp_path / wnid / "a.png", 0, 0)
    data = open_data(str(tmp_path), [f"class {index}" for index in range(1000)])
    assert_array_equal(data.labels, [1, 2, 430])


def test_fingerprint_changes_with_the_files(tmp_path, colours):
    colours.save(tmp_path / "red" / "a.png", 0, 0)
    before = open_data(str(tmp_path), NAMES).fingerprint("clean", 0.0)
    assert open_data(str(tmp_path), NAMES).fingerprint("clean", 0.0) == before
    colours.save(tmp_path / "red" / "a.png", 0, 1)
    assert open_data(str(tmp_path), NAMES).fingerprint("clean", 0.0) != before


def test_tree_of_3dcc(tmp_path, colours):
    colours.tree(tmp_path, DOMAINS_3DCC)
    data = open_data(str(tmp_path), NAMES)
    assert data.domains == DOMAINS_3DCC
    assert_array_equal(data.labels, [0, 0, 1, 1, 2, 2])
    assert_array_equal(data.load(3, "flash", 5.0), colours.image(1, 1))


def test_image_list_decides_images_and_order(tmp_path, colours):
    colours.tree(tmp_path, ["fog", "snow"])
    listed = tmp_path / "ids.txt"
    listed.write_text("n00000003/1.png 2\nn00000001/0.png,0\n\n")
    data = open_data(str(tmp_path), NAMES, domains=["snow", "fog"], image_list=listed)
    assert_array_equal(data.labels, [2, 0])
    assert data.domains == ("snow", "fog")
    assert data.default_order == "list"
    assert_array_equal(data.load(0, "fog", 5.0), colours.image(2, 1))


def test_missing_folders_of_a_tree_are_all_named(tmp_path, colours):
    colours.tree(tmp_path, ["fog", "snow"])
    with pytest.raises(ArtifactError, match=r"13 of 15 .*: gaussian_noise/5, .*jpeg") as caught:
        open_data(str(tmp_path), NAMES)
    assert "fog/5" not in str(caught.value)
    with pytest.raises(ArtifactError, match=r"2 of 4 folders missing: fog/3, snow/3"):
        open_data(str(tmp_path), NAMES, domains=["fog", "snow"], severities=(3.0, 5.0))


def test_missing_images_of_a_tree_are_counted_and_one_is_named(tmp_path, colours):
    colours.tree(tmp_path, ["fog", "snow"])
    (tmp_path / "snow" / "5" / "n00000002" / "1.png").unlink()
    with pytest.raises(ArtifactError, match=r"snow/5 lacks 1 of 6 images, first n00000002/1\.png"):
        open_data(str(tmp_path), NAMES, domains=["fog", "snow"])


def test_severity_between_those_of_a_tree(tmp_path, colours):
    colours.tree(tmp_path, ["fog"])
    with pytest.raises(ConfigError, match=r"severity: a tree has 1, 2, 3, 4, 5, got 2\.5"):
        open_data(str(tmp_path), NAMES, domains=["fog"], severities=(2.5,))


def test_arrays(tmp_path, colours):
    images = np.stack([colours.image(label, 0) for label in (2, 0)])
    np.savez(tmp_path / "a.npz", images=images, labels=np.array([2, 0], dtype=np.uint8))
    data = open_data(str(tmp_path / "a.npz"), NAMES)
    assert_array_equal(data.labels, [2, 0])
    assert_array_equal(data.load(1, "clean", 0.0), images[1])


@pytest.mark.parametrize(
    ("dtype", "labels", "message"),
    [
        (np.uint8, None, "labels missing; it has images"),
        (np.float32, [0, 0], r"images: expected \(N, H, W, 3\) uint8 RGB, got .* float32"),
        (np.uint8, [0, 3], r"labels: expected class indices in \[0, 3\)"),
        (np.uint8, [0, 0, 0], r"labels: expected \(2,\) integers"),
    ],
)
def test_bad_arrays_are_refused(tmp_path, dtype, labels, message):
    arrays = {} if labels is None else {"labels": np.array(labels)}
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 4, 4, 3), dtype), **arrays)
    with pytest.raises(ArtifactError, match=message):
        open_data(str(tmp_path / "a.npz"), NAMES)


@pytest.mark.parametrize("open_file", [lambda path: open_data(path, NAMES), load_dump])
def test_an_array_under_the_name_of_an_archive_is_refused(tmp_path, open_file):
    path = tmp_path / "a.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ArtifactError, match=r"a\.npz: .*cannot be read .*copy the file again"):
        open_file(str(path))


def test_hidden_folders_are_no_classes(tmp_path, colours):
    (tmp_path / ".ipynb_checkpoints").mkdir()
    with pytest.raises(ArtifactError, match=r"expected class folders, .* found neither"):
        open_data(str(tmp_path), NAMES)
    colours.folders(tmp_path)
    assert len(open_data(str(tmp_path), NAMES).labels) == 24


def test_test_source_with_truth(tmp_path):
    labels = [f"class {index}" for index in range(60)]
    uri = "test://drive?frames=12&conditions=clear,fog"
    data = open_data(uri, labels, cache=tmp_path)
    assert len(data.labels) == 12
    assert data.recorded is not None
    assert len(set(data.recorded)) == 2
    image = data.load(0, "clean", 0.0)
    assert image.dtype == np.uint8
    # The second time labels and conditions are known, and a frame is drawn when it is asked for.
    again = open_data(uri, labels, cache=tmp_path)
    assert again.recorded == data.recorded
    assert_array_equal(again.labels, data.labels)
    assert_array_equal(again.load(0, "clean", 0.0), image)
    (facts,) = tmp_path.glob("*.recording.json")
    facts.write_text("{}")
    with pytest.raises(ArtifactError, match="damaged cache file"):
        open_data(uri, labels, cache=tmp_path)


def test_test_source_without_truth_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="frame 0 has no truth"):
        open_data("test://pattern?frames=2", NAMES, cache=tmp_path)


@pytest.mark.parametrize(
    ("name", "message"), [("absent", "found nothing there"), ("file.txt", "got another file")]
)
def test_what_is_no_data_is_refused(tmp_path, name, message):
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(ArtifactError, match=message):
        open_data(str(tmp_path / name), NAMES)


def test_empty_folder_says_what_was_looked_for(tmp_path):
    with pytest.raises(ArtifactError, match=r"class folders, or images named WNID_\*\.jpg"):
        open_data(str(tmp_path), NAMES)


def test_variants_beside_each_other_are_no_classes(tmp_path, colours):
    colours.save(tmp_path / "matched-frequency" / "0" / "a.png", 0, 0)
    colours.save(tmp_path / "top-images" / "0" / "a.png", 0, 0)
    with pytest.raises(ArtifactError, match="found none in 2 of 2, matched-frequency the first"):
        open_data(str(tmp_path), NAMES)
