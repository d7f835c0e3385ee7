"""The feature cache: computed once, resumed, and never silently wrong."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gain_apps.evaluation.features import CHUNK_ROWS, FeatureCache, default_cache_dir
from gain_core.errors import ArtifactError

NUM_ROWS = 2 * CHUNK_ROWS + 5
KEY = {"artifact": "abc", "domain": "fog", "severity": 5.0}
TABLE = np.random.default_rng(0).normal(size=(NUM_ROWS, 7)).astype(np.float32)


class Network:
    """Gives the table's rows, and remembers which were asked for."""

    def __init__(self, fail_at=None):
        self.calls = []
        self.fail_at = fail_at

    def __call__(self, start, end):
        if self.fail_at is not None and start >= self.fail_at:
            raise KeyboardInterrupt
        self.calls.append((start, end))
        return TABLE[start:end, :3], TABLE[start:end, 3:]


@pytest.fixture
def cache(tmp_path):
    return FeatureCache(folder=tmp_path / "cache", feature_dim=3, num_classes=4)


def fetch(cache, network, key=KEY):
    return cache.fetch(key, NUM_ROWS, compute=network)


def files(cache, pattern):
    return sorted(cache.folder.glob(pattern))


def test_computed_once_then_mapped(cache):
    first, second = Network(), Network()
    fetch(cache, first)
    outputs = fetch(cache, second)
    assert first.calls == [(0, 256), (256, 512), (512, 517)]
    assert second.calls == []
    assert_array_equal(outputs.features, TABLE[:, :3])
    assert_array_equal(outputs.logits, TABLE[:, 3:])
    assert isinstance(outputs.features, np.memmap)
    assert not outputs.features.flags.writeable
    assert len(files(cache, "*")) == 2
    record = json.loads(files(cache, "*.json")[0].read_text())
    assert record["key"] == KEY


def test_other_keys_are_other_entries(cache):
    fetch(cache, Network())
    other = Network()
    fetch(cache, other, key={**KEY, "severity": 3.0})
    assert len(other.calls) == 3


def test_interrupted_run_resumes_after_its_last_chunk(cache):
    with pytest.raises(KeyboardInterrupt):
        fetch(cache, Network(fail_at=CHUNK_ROWS))
    rest = Network()
    outputs = fetch(cache, rest)
    assert rest.calls == [(256, 512), (512, 517)]
    assert_array_equal(outputs.features, TABLE[:, :3])
    assert files(cache, "*partial*") == []


def test_rows_are_reported_whether_cached_or_not(cache):
    seen = []
    for _ in range(2):
        cache.fetch(KEY, NUM_ROWS, compute=Network(), on_rows=lambda: seen.append(1))
    assert len(seen) == 2 * NUM_ROWS


def flip(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-50])


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        pytest.param("npy", flip, id="array changed"),
        pytest.param("npy", truncate, id="array cut short"),
        pytest.param("npy", empty, id="array emptied"),
        pytest.param("json", truncate, id="sidecar cut short"),
        pytest.param("json", empty, id="sidecar emptied"),
    ],
)
def test_damaged_entry_is_an_error_that_names_the_file(cache, suffix, damage):
    fetch(cache, Network())
    (path,) = files(cache, f"*.{suffix}")
    damage(path)
    with pytest.raises(ArtifactError, match=rf"{path.name}: damaged cache file .*delete it"):
        fetch(cache, Network())


def test_damaged_partial_entry_is_an_error_too(cache):
    with pytest.raises(KeyboardInterrupt):
        fetch(cache, Network(fail_at=CHUNK_ROWS))
    (path,) = files(cache, "*.partial.npy")
    flip(path, at=200)
    with pytest.raises(ArtifactError, match=rf"{path.name}: .*chunk 0 does not have its checksum"):
        fetch(cache, Network())


def test_sidecar_of_another_entry_is_found_out(cache):
    fetch(cache, Network())
    (path,) = files(cache, "*.json")
    record = json.loads(path.read_text())
    record["key"]["domain"] = "snow"
    path.write_text(json.dumps(record))
    with pytest.raises(ArtifactError, match="belongs to another key"):
        fetch(cache, Network())


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    cache = FeatureCache(folder=tmp_path / "file" / "cache", feature_dim=3, num_classes=4)
    with pytest.raises(ArtifactError, match=r"cannot be written .*--cache"):
        fetch(cache, Network())


def test_default_folder_respects_xdg(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "gain-edge" / "features"
