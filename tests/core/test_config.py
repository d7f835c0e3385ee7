"""The settings' record: ranges, presets, and the way to a file and back."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, replace

import pytest

from gain_core import GainConfig
from gain_core.config import PRESETS
from gain_core.errors import ConfigError, GainError

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        pytest.param(field, bad, id=f"{field}={bad}")
        for field, values in {
            "proposal": ("softmax", "Shift", ""),
            "shrinkage": (-1e-9, INF, NAN),
            "label_draws": (-1.0, INF, NAN),
            "mixture_test": (1, "no", None),
            "independence_test": (1, "no", None),
            "match_scale": (0, "yes", None),
            "class_prior": (1, "no", None),
            "guard": (1, "yes", None),
            "prior_strength": (0.0, -1.0, INF, NAN),
            "prior_samples": (-1e-9, INF, NAN),
            "half_life": (0.0, -420.0, NAN),
            "scale_half_life": (0.0, -1.0, NAN),
            "normalise": (1, 0, "yes", None),
            "anchor": ("zbar", "", "Balanced"),
            "variance": ("full", "unit"),
            "prior_variance": ("none", "diagonal"),
            "variance_floor": (0.0, -1e-6, INF, NAN),
            "variance_floor_ratio": (-0.01, 1.01, NAN),
            "temper": ("tail", "mean"),
            "prob_floor": (-1e-12, 0.011, NAN),
            "num_iters": (0, 61, -1, 2.5, NAN),
        }.items()
        for bad in values
    ],
)
def test_value_out_of_range_names_the_field(field, bad):
    with pytest.raises(ConfigError, match=rf"^{field}: expected .*got {bad!r}$"):
        replace(GainConfig(), **{field: bad})


@pytest.mark.parametrize(
    ("field", "good"),
    [
        pytest.param("shrinkage", 0.0, id="no-shrinkage"),
        pytest.param("label_draws", 0.0, id="no-label-draws"),
        pytest.param("mixture_test", False, id="no-mixture-test"),
        pytest.param("independence_test", False, id="no-independence-test"),
        pytest.param("match_scale", False, id="no-match-scale"),
        pytest.param("class_prior", False, id="no-class-prior"),
        pytest.param("guard", False, id="no-guard"),
        pytest.param("prior_strength", 1e-6, id="small-prior"),
        pytest.param("prior_samples", 0.0, id="no-prior-samples"),
        pytest.param("half_life", 0.5, id="short-memory"),
        pytest.param("scale_half_life", INF, id="scale-never-forgets"),
        pytest.param("variance_floor_ratio", 0.0, id="no-ratio"),
        pytest.param("variance_floor_ratio", 1.0, id="whole-ratio"),
        pytest.param("prob_floor", 1e-2, id="highest-floor"),
        pytest.param("num_iters", 1, id="one-halving"),
        pytest.param("num_iters", 60, id="sixty-halvings"),
        pytest.param("normalise", True, id="normalise"),
    ],
)
def test_value_at_the_edge_of_its_range_is_kept(field, good):
    assert getattr(replace(GainConfig(), **{field: good}), field) == good


def test_endless_memory_and_prior_samples_contradict_each_other():
    with pytest.raises(ConfigError, match="prior_samples: expected 0 with an infinite half_life"):
        GainConfig(half_life=INF, prior_samples=1.0)
    assert GainConfig(half_life=INF, prior_samples=0.0).decay(1000) == 1.0


def test_config_error_is_a_value_error_of_this_project():
    assert issubclass(ConfigError, GainError)
    assert issubclass(ConfigError, ValueError)


def test_config_is_frozen_and_compares_by_value():
    config = GainConfig()
    with pytest.raises(FrozenInstanceError):
        config.half_life = 1.0
    assert config == GainConfig()
    assert hash(config) == hash(GainConfig())
    assert replace(config, half_life=421.0) != config


def test_default_is_the_preset_tracked():
    assert GainConfig() == GainConfig.preset("tracked")


def test_presets_are_what_their_names_say():
    assert set(PRESETS) == {"paper", "paper-l2", "balanced", "tracked"}
    paper = GainConfig.preset("paper")
    assert paper.prior_strength == 3.0
    assert (paper.anchor, paper.variance, paper.prior_variance, paper.temper) == (
        "prototype",
        "diagonal",
        "unit",
        "none",
    )
    assert paper.half_life == INF
    assert not paper.normalise
    assert GainConfig.preset("paper-l2") == replace(paper, normalise=True, variance_floor=1e-2)
    balanced = GainConfig.preset("balanced")
    assert (balanced.anchor, balanced.variance, balanced.prior_variance, balanced.temper) == (
        "balanced",
        "isotropic",
        "total",
        "head",
    )
    assert balanced.half_life == 420.0
    assert (balanced.prior_strength, balanced.prior_samples) == (300.0, 50.0)
    assert (balanced.scale_half_life, balanced.variance_floor_ratio) == (4414.0, 0.05)
    for name in ("paper", "paper-l2", "balanced"):
        assert GainConfig.preset(name).proposal == "gaussian"
        assert not GainConfig.preset(name).guard
    tracked = GainConfig.preset("tracked")
    assert (tracked.proposal, tracked.guard) == ("shift", True)
    assert (tracked.mixture_test, tracked.match_scale) == (True, True)
    assert (tracked.half_life, tracked.shrinkage, tracked.label_draws) == (1024.0, 1.25, 10.0)


def test_unknown_preset_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"preset: expected one of .*tracked.*got 'papers'"):
        GainConfig.preset("papers")


@pytest.mark.parametrize("name", PRESETS)
def test_round_trip_through_strict_json(name):
    config = GainConfig.preset(name)
    text = json.dumps(config.to_dict(), allow_nan=False)
    assert GainConfig.from_dict(json.loads(text)) == config


def test_round_trip_keeps_a_value_of_every_field():
    config = GainConfig(
        proposal="gaussian",
        shrinkage=2.5,
        label_draws=3.0,
        mixture_test=False,
        independence_test=False,
        match_scale=False,
        class_prior=False,
        guard=False,
        prior_strength=7.5,
        prior_samples=2.0,
        half_life=77.0,
        normalise=True,
        anchor="balanced",
        scale_half_life=INF,
        variance="isotropic",
        prior_variance="total",
        variance_floor=2e-3,
        variance_floor_ratio=0.25,
        temper="head",
        prob_floor=1e-5,
        num_iters=31,
    )
    default = GainConfig().to_dict()
    record = config.to_dict()
    assert all(record[key] != default[key] for key in default)
    assert GainConfig.from_dict(json.loads(json.dumps(record, allow_nan=False))) == config


def test_unknown_keys_are_named():
    record = {**GainConfig().to_dict(), "kappa_0": 3.0, "beta": 1.0}
    with pytest.raises(ConfigError, match=r"config: unknown key beta, kappa_0; known keys are"):
        GainConfig.from_dict(record)


def test_missing_keys_take_their_defaults():
    assert GainConfig.from_dict({"half_life": 100.0}) == GainConfig(half_life=100.0)


@pytest.mark.parametrize(
    ("preset", "num_classes", "expected"),
    [
        pytest.param("paper", 2, 3.0, id="paper-K2"),
        pytest.param("paper", 1000, 3.0, id="paper-K1000"),
        pytest.param("paper-l2", 36, 3.0, id="paper-l2-K36"),
        # 50 * 420 / ln 2 / K = 30296.6 / K
        pytest.param("balanced", 10, 3029.6595858668423, id="balanced-K10"),
        pytest.param("balanced", 36, 841.5721071852340, id="balanced-K36"),
        pytest.param("balanced", 100, 302.96595858668423, id="balanced-K100"),
        pytest.param("balanced", 101, 300.0, id="balanced-K101"),
        pytest.param("balanced", 20_000, 300.0, id="balanced-K20000"),
    ],
)
def test_strength_of_prior(preset, num_classes, expected):
    strength = GainConfig.preset(preset).strength_of_prior(num_classes)
    assert strength == pytest.approx(expected, rel=1e-12)


def test_decay_is_a_half_after_one_half_life_and_multiplies():
    config = GainConfig(half_life=420.0, scale_half_life=1000.0)
    assert config.decay(420) == 0.5
    assert config.decay(0) == 1.0
    assert config.decay(100) * config.decay(320) == pytest.approx(0.5, rel=1e-15)
    assert config.scale_decay(1000) == 0.5
    assert config.scale_decay(0) == 1.0


def test_balanced_forgets_a_tenth_per_batch_of_64():
    assert GainConfig.preset("balanced").decay(64) == pytest.approx(0.9, abs=5e-4)
    assert GainConfig.preset("balanced").scale_decay(64) == pytest.approx(0.99, abs=1e-5)
