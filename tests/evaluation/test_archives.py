"""Data sets as they are published: stand-ins with the layouts of the real archives."""

import io
import tarfile

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from gain_apps.evaluation.datasets import open_data
from gain_core.errors import ArtifactError

LABELS = ("red", "green", "blue")
WNIDS = ("n00000001", "n00000002", "n00000003")


def jpeg(colours, label, number=0):
    stream = io.BytesIO()
    Image.fromarray(colours.image(label, number)).save(stream, format="JPEG")
    return stream.getvalue()


def pack(path, files, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(data)
            archive.addfile(item, io.BytesIO(data))
    return path


def unpack(path, folder):
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")


def corrupted(colours, domains):
    """As ImageNet-C's archives: DOMAIN/SEVERITY/WNID/ILSVRC2012_val_NUMBER.JPEG."""
    return {
        f"{domain}/{level}/{wnid}/ILSVRC2012_val_{number:08}.JPEG": jpeg(colours, label, number)
        for domain in domains
        for level in (3, 5)
        for label, wnid in enumerate(WNIDS)
        for number in (1, 2)
    }


@pytest.fixture
def class_file(tmp_path, colours):
    return colours.class_list(tmp_path / "names")


@pytest.mark.parametrize(
    ("folder", "name", "classes"),
    [
        pytest.param("imagenet-r", "art_{}.jpg", WNIDS, id="ImageNet-R"),
        pytest.param("imagenet-a", "0.0{}_clock _ clock_0.8.jpg", WNIDS, id="ImageNet-A"),
        pytest.param("sketch", "sketch_{}.JPEG", WNIDS, id="ImageNet-Sketch"),
        pytest.param(
            "imagenetv2-matched-frequency-format-val", "f{}.jpeg", ("0", "1", "2"), id="V2"
        ),
    ],
)
def test_class_folders_read_the_same_from_archive_and_folder(
    folder, name, classes, tmp_path, colours, class_file
):
    files = {
        f"{folder}/{wnid}/{name.format(number)}": jpeg(colours, label, number)
        for label, wnid in enumerate(classes)
        for number in (0, 1)
    }
    path = pack(tmp_path / "set.tar", {f"{folder}/README.txt": b"read me", **files})
    unpack(path, tmp_path / "out")
    packed = open_data(str(path), LABELS, class_file=class_file)
    plain = open_data(str(tmp_path / "out" / folder), LABELS, class_file=class_file)
    assert_array_equal(packed.labels, [0, 0, 1, 1, 2, 2])
    assert_array_equal(plain.labels, packed.labels)
    for index in range(6):
        assert_array_equal(packed.load(index, "clean", 0), plain.load(index, "clean", 0))
    assert packed.domains is None


def test_tree_reads_the_same_from_archives_and_folder(tmp_path, colours, class_file):
    root = tmp_path / "imagenet-c"
    root.mkdir()
    pack(root / "blur.tar", corrupted(colours, ["defocus_blur", "motion_blur"]))
    pack(root / "weather.tar", corrupted(colours, ["fog"]))
    for path in root.iterdir():
        unpack(path, tmp_path / "out")
    choice = {"domains": ("fog", "motion_blur"), "severities": (5.0,), "class_file": class_file}
    packed = open_data(str(root), LABELS, **choice)
    plain = open_data(str(tmp_path / "out"), LABELS, **choice)
    assert packed.domains == plain.domains == ("fog", "motion_blur")
    assert_array_equal(packed.labels, plain.labels)
    for index in range(6):
        assert_array_equal(packed.load(index, "fog", 5.0), plain.load(index, "fog", 5.0))
    assert packed.fingerprint("fog", 5.0) != packed.fingerprint("motion_blur", 5.0)
    with pytest.raises(ArtifactError, match="1 of 2 folders missing: snow/5"):
        open_data(str(root), LABELS, **{**choice, "domains": ("fog", "snow")})


def test_3dcc_lies_in_an_archive_per_domain_and_below_a_folder(tmp_path, colours, class_file):
    files = {f"ImageNet-3DCC/{name}": data for name, data in corrupted(colours, ["flash"]).items()}
    path = pack(tmp_path / "flash.tar", files)
    data = open_data(str(path), LABELS, domains=("flash",), class_file=class_file)
    assert len(data.labels) == 6
    assert data.load(0, "flash", 5.0).shape == (40, 48, 3)


def test_webdataset_shards(tmp_path, colours):
    for shard in range(2):
        files = {}
        for label in (2, 0, 1):
            files[f"{label}{shard}.jpg"] = jpeg(colours, label, shard)
            files[f"{label}{shard}.cls"] = str(label).encode()
        pack(tmp_path / f"shard-{shard:06}.tar", files)
    data = open_data(str(tmp_path), LABELS)
    assert data.kind == "WebDataset"
    assert_array_equal(data.labels, [2, 0, 1, 2, 0, 1])
    assert data.load(5, "clean", 0).shape == (40, 48, 3)


@pytest.mark.parametrize("parquet", [True, False], ids=["Parquet", "save_to_disk"])
def test_data_sets_of_the_library_datasets(parquet, tmp_path, colours, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    library = pytest.importorskip("datasets", reason="not installed: extra eval")
    features = library.Features(
        {"image": library.Image(), "label": library.ClassLabel(names=list(LABELS))}
    )
    rows = {"image": [{"bytes": jpeg(colours, label), "path": None} for label in (0, 2, 1)]}
    made = library.Dataset.from_dict({**rows, "label": [0, 2, 1]}, features=features)
    if parquet:
        (tmp_path / "set" / "data").mkdir(parents=True)
        made.to_parquet(tmp_path / "set" / "data" / "validation-00000-of-00001.parquet")
    else:
        made.save_to_disk(tmp_path / "set")
    data = open_data(str(tmp_path / "set"), LABELS)
    assert_array_equal(data.labels, [0, 2, 1])
    expected = np.asarray(Image.open(io.BytesIO(jpeg(colours, 2))))
    assert_array_equal(data.load(1, "clean", 0), expected)


def test_what_is_wrong_with_an_archive_is_one_line(tmp_path, colours):
    files = {"red/0.jpg": jpeg(colours, 0)}
    with pytest.raises(ArtifactError, match=r"a\.tar\.gz: expected a whole, uncompressed tar"):
        open_data(str(pack(tmp_path / "a.tar.gz", files, "w:gz")), LABELS)
    with pytest.raises(ArtifactError, match="expected images in the archive, found none"):
        open_data(str(pack(tmp_path / "b.tar", {"README": b"x"})), LABELS)
    shard = {"0.jpg": jpeg(colours, 0), "1.jpg": jpeg(colours, 1), "1.cls": b"1"}
    with pytest.raises(ArtifactError, match=r"0\.jpg: expected a class index in a \.cls file"):
        open_data(str(pack(tmp_path / "c.tar", shard)), LABELS)
