"""The settings' records: ranges, presets, and the way to a file and back."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from gain_core import (
    DEFAULT_PRESET,
    PRESETS,
    ConfigError,
    Gain,
    PaperConfig,
    ShiftConfig,
    config_from_dict,
    config_to_dict,
    make_method,
    preset,
)
from gain_core.shift import DEFAULT_SKEWNESS

NAN, INF = math.nan, math.inf
NUMBERS = [item.name for item in fields(ShiftConfig)]
BAD = [
    *((ShiftConfig, name, value) for name in NUMBERS for value in (0.0, -1.0, INF, NAN)),
    (PaperConfig, "prior_strength", 0.0),
    (PaperConfig, "prior_strength", INF),
    (PaperConfig, "prior_strength", NAN),
    (PaperConfig, "normalise", 1),
    (PaperConfig, "variance_floor", 0.0),
    (PaperConfig, "variance_floor", NAN),
    (PaperConfig, "prob_floor", 0.0),
    (PaperConfig, "prob_floor", 0.011),
]


@pytest.mark.parametrize(
    ("kind", "field", "bad"), [pytest.param(*item, id=f"{item[1]}={item[2]}") for item in BAD]
)
def test_a_value_out_of_range_names_the_field(kind, field, bad):
    with pytest.raises(ConfigError, match=rf"^{field}: expected .*got "):
        kind(**{field: bad})


def test_a_config_is_frozen_and_compares_by_value():
    for config in PRESETS.values():
        with pytest.raises(FrozenInstanceError):
            setattr(config, fields(config)[0].name, 1.0)
        assert config == replace(config)
        assert hash(config) == hash(replace(config))
    assert replace(ShiftConfig(), half_life=77.0) != ShiftConfig()


def test_presets_are_what_their_names_say():
    assert DEFAULT_PRESET == "shift"
    assert preset("shift") == ShiftConfig()
    assert preset("paper") == PaperConfig()
    assert PaperConfig().prior_strength == 3.0
    assert not PaperConfig().normalise
    assert preset("paper-l2") == PaperConfig(normalise=True, variance_floor=1e-2)
    assert make_method(5).config == ShiftConfig()
    with pytest.raises(ConfigError, match=r"^preset: expected one of .*shift.*got 'tracked'"):
        preset("tracked")


def test_the_default_has_at_most_ten_numbers():
    assert sum(len(v) if isinstance(v, tuple) else 1 for v in vars_of(ShiftConfig())) <= 10


def vars_of(config: ShiftConfig) -> list[float | tuple[float, float]]:
    return [getattr(config, item.name) for item in fields(config)]


def test_round_trip_keeps_a_value_of_every_field():
    shift = ShiftConfig(**{name: 3.0 + i for i, name in enumerate(NUMBERS)})
    paper = PaperConfig(prior_strength=7.5, normalise=True, variance_floor=2e-3, prob_floor=1e-5)
    for config in (shift, paper):
        record, default = config_to_dict(config), config_to_dict(type(config)())
        assert all(record[key] != default[key] for key in default if key != "method")
        again = config_from_dict(json.loads(json.dumps(record, allow_nan=False)))
        assert again == config
        assert hash(again) == hash(config)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"method": "shift", "kappa_0": 3.0, "beta": 1.0}, "config: unknown key beta, kappa_0;"),
        ({"half_life": 100.0}, r"config: method: expected one of shift, paper, got None"),
        ({"method": "tracked"}, r"config: method: expected one of shift, paper, got 'tracked'"),
        ({"method": "shift", "half_life": "long"}, "config: half_life: .* a number, got 'long'"),
        ({"method": "shift", "half_life": None}, "config: half_life: .* a number, got None"),
        ({"method": "shift", "block": True}, "config: block: .* a number, got True"),
        ({"method": "paper", "normalise": 1.0}, "config: normalise: .*true or false, got 1.0"),
        ({"method": "paper", "prob_floor": 1.0}, "prob_floor: expected"),
    ],
    ids=["unknown", "no-method", "old-method", "text", "none", "bool", "number", "range"],
)
def test_a_record_that_does_not_fit_is_named(record, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        config_from_dict(record)


def test_missing_keys_take_their_defaults():
    found = config_from_dict({"method": "shift", "half_life": 100.0})
    assert found == ShiftConfig(half_life=100.0)


@pytest.mark.parametrize("pair", [(NAN, 0.5), (0.1, INF), (0.1,), 0.3, "skewed", (0.1, None)])
def test_a_skewness_that_is_no_pair_is_refused(pair):
    with pytest.raises(ConfigError, match=r"^skewness: expected two finite numbers"):
        make_method(5, skewness=pair)


def test_skewness_is_given_guessed_from_the_head_or_conservative():
    assert make_method(5, skewness=(0.1, 0.4)).measured == {
        "skewness": (0.1, 0.4),
        "clean_moments": None,
    }
    assert make_method(5).measured["skewness"] == DEFAULT_SKEWNESS


FIVE = (0.1,) * 5
NO_MOMENTS = [
    [(0.1,) * 4] * 2,
    [FIVE, (0.1, NAN, 0.0, 0.0, 0.0)],
    [FIVE],
    [FIVE] * 3,
    FIVE,
    0.3,
    "no",
    [FIVE, None],
]


@pytest.mark.parametrize("moments", NO_MOMENTS, ids=str)
def test_clean_moments_of_another_number_of_classes_are_refused(moments):
    with pytest.raises(ConfigError, match=r"^clean_moments: expected two rows of 5 finite numbers"):
        make_method(5, clean_moments=moments)


@pytest.mark.parametrize("pair", [(0.1, 0.15), (0.0, 0.0), (0.3, 0.1)])
def test_where_a_mixture_cannot_be_told_from_one_class_nothing_is_learned(pair):
    rng = np.random.default_rng(0)
    for method_pair, learns in ((pair, False), ((0.0, 0.1), True)):
        gain = Gain(10, skewness=method_pair)
        for _ in range(30):
            logits = 4.0 * np.eye(10)[rng.integers(0, 10, 16)] + rng.normal(size=(16, 10)) + 2.0
            gain.step(None, logits.astype(np.float32))
        assert (gain.state.draws[-1] > 0) == learns


def test_an_object_that_is_no_config_is_refused():
    with pytest.raises(ConfigError, match=r"^config: expected a config, got 'shift'"):
        make_method(5, "shift")
