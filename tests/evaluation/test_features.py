"""Features: views, corruptions, normalisation and sizes as the network sees them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_apps.evaluation.datasets import open_data
from gain_apps.evaluation.eval_input import ANY_SEVERITY, FeatureStore, Outputs
from gain_apps.evaluation.features import (
    LEAST_SHARE,
    Cell,
    FeatureCache,
    FeatureMaker,
    make_view,
    normalised,
)
from gain_apps.evaluation.methods.protocol import Head
from gain_apps.evaluation.streams import StreamBatch
from gain_core.errors import ConfigError
from gain_runtime.files.artifact import load_artifact
from gain_runtime.preprocess import preprocess
from gain_runtime.sessions.onnx import OnnxSession
from gain_scenes.corruptions import corrupt, image_rng


@pytest.fixture
def session(artifact):
    with OnnxSession(artifact) as opened:
        yield opened


@pytest.fixture
def make(session, tmp_path):
    def maker(location, **options):
        data = open_data(str(location), session.artifact.manifest.labels)
        cache = FeatureCache(folder=tmp_path / "cache", feature_dim=12, num_classes=3)
        return FeatureMaker(session=session, data=data, cache=cache, **options)

    return maker


def test_clean_features_are_those_of_the_session(make, session, colours, tmp_path):
    maker = make(colours.folders(tmp_path / "data", per_class=2))
    outputs = maker.outputs("clean", 5.0)
    spec = session.artifact.manifest.preprocess
    expected = session.infer(preprocess(maker.data.load(0, "clean", 0.0), spec)[None])
    assert_array_equal(outputs.features[:1], expected.features)
    assert_array_equal(outputs.logits[:1], expected.logits)


def test_corruption_comes_after_the_resize(make, session, colours, tmp_path):
    maker = make(colours.folders(tmp_path / "data", per_class=1), seed=4)
    outputs = maker.outputs("gaussian_noise", 3.0)
    spec = session.artifact.manifest.preprocess
    image = maker.data.load(1, "clean", 0.0)
    # In [-1, 1] after normalisation, so this gives the resized 8-bit pixels back.
    sized = np.rint((preprocess(image, spec) * 0.5 + 0.5) * 255).astype(np.uint8)
    noisy = corrupt(
        np.ascontiguousarray(np.moveaxis(sized, 0, 2)),
        "gaussian_noise",
        3.0,
        rng=image_rng(4, 1, "gaussian_noise"),
    )
    pixel_values = np.moveaxis(noisy.astype(np.float32) / 255 * 2 - 1, 2, 0)[None]
    expected = session.infer(np.ascontiguousarray(pixel_values))
    assert_allclose(outputs.features[1:2], expected.features, atol=1e-6)


@pytest.mark.parametrize(("size", "fits"), [((32, 32), True), ((40, 40), False)])
def test_images_of_the_input_size_are_not_resized_again(size, fits, make, colours, tmp_path):
    tree = colours.tree(tmp_path / "tree", ["fog"], per_class=1, size=size)
    data = open_data(str(tree), colours.names, domains=["fog"])
    maker = make(colours.folders(tmp_path / "data", per_class=1))
    maker = FeatureMaker(session=maker.session, data=data, cache=maker.cache)
    plain = colours.image(0, 0, size).astype(np.float32) / 255 * 2 - 1
    quarters = [plain[:16, :16], plain[:16, 16:32], plain[16:32, :16], plain[16:32, 16:32]]
    expected = np.concatenate([part.mean(axis=(0, 1)) for part in quarters])
    close = np.allclose(maker.outputs("fog", 5.0).features[0], expected, atol=1e-5)
    assert close is fits


@pytest.mark.parametrize(
    ("normalise", "level"), [("timm", 0.0), ("unit", 0.5), ("imagenet", (0.5 - 0.485) / 0.229)]
)
def test_normalisation(normalise, level, artifact):
    spec = normalised(load_artifact(artifact).manifest.preprocess, normalise)
    grey = np.full((32, 32, 3), 128, dtype=np.uint8)
    assert_allclose(preprocess(grey, spec)[0].mean(), level, atol=0.01)
    with pytest.raises(ConfigError, match="normalise: expected timm, unit, imagenet, got 'x'"):
        normalised(spec, "x")


def test_keys_tell_apart_what_changes_the_features(make, colours, tmp_path):
    folder = colours.folders(tmp_path / "data", per_class=1)
    plain = make(folder)
    cells = [("fog", 5.0, 0), ("fog", 4.0, 0), ("snow", 5.0, 0), ("fog", 5.0, 1)]
    keys = [plain.key(Cell(*cell)) for cell in cells]
    keys += [make(folder, normalise="unit").key(Cell("fog", 5.0, 0))]
    keys += [make(folder, seed=1).key(Cell("fog", 5.0, 0))]
    assert len({str(key) for key in keys}) == len(keys)
    # Clean images have nothing random in them.
    assert plain.key(Cell("clean", 0.0, 0)) == make(folder, seed=1).key(Cell("clean", 0.0, 0))


def test_unknown_domain_is_refused(make, colours, tmp_path):
    maker = make(colours.folders(tmp_path / "data", per_class=1))
    with pytest.raises(ConfigError, match=r"domains: expected some of clean, .* got smoke"):
        maker.outputs("smoke", 5.0)


def test_views_are_crops_and_every_second_is_mirrored():
    image = np.arange(40 * 60 * 3, dtype=np.int64).reshape(40, 60, 3)
    assert make_view(image, 0, seed=0, index=7) is image
    places = set()
    for number in range(1, 7):
        view = make_view(image, number, seed=0, index=7)
        height, width = view.shape[:2]
        assert LEAST_SHARE * 40 - 1 <= height <= 40
        assert abs(width / height - 60 / 40) < 0.06
        upright = view[:, ::-1] if number % 2 else view
        top, left = np.argwhere(image[..., 0] == upright[0, 0, 0])[0]
        assert_array_equal(upright, image[top : top + height, left : left + width])
        assert_array_equal(view, make_view(image, number, seed=0, index=7))
        places.add((int(top), int(left), height))
    assert len(places) > 3
    first, second = (make_view(image, 1, seed=seed, index=7) for seed in (0, 1))
    assert first.tobytes() != second.tobytes()


def test_store_finds_views_domains_and_severities():
    def outputs(base):
        rows = np.full((4, 2), base, dtype=np.float16) + np.arange(4)[:, None]
        return Outputs(features=rows, logits=rows * 10)

    store = FeatureStore(
        head=Head(weight=np.eye(2, dtype=np.float32), bias=np.zeros(2, dtype=np.float32)),
        labels=np.zeros(8, dtype=np.int64),
        domains=("a", "b"),
        outputs={
            ("a", 1.0): (outputs(100), outputs(200)),
            ("a", 2.0): (outputs(300), outputs(400)),
            ("b", ANY_SEVERITY): (outputs(500), outputs(600)),
        },
    )
    domains, severities = np.array([0, 0, 1, 0]), np.array([1.0, 2.0, 2.0, 1.0])
    item = StreamBatch(domains, severities, np.array([6, 1, 7, 0]), rounds=np.zeros(4, int))
    batch = store.batch(item)
    assert_array_equal(batch.features[:, 0], [202, 301, 603, 100])
    assert_array_equal(batch.logits[:, 0], [2020, 3010, 6030, 1000])
    assert batch.features.dtype == np.float32
    with pytest.raises(ConfigError, match="a is recorded at 1, 2, not at 5"):
        store.batch(item._replace(severities=np.full(4, 5.0)))
