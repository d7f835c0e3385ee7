"""`gain-eval --config`: defaults, then the file, then flags; wrong keys and values are errors."""

from __future__ import annotations

import json

import pytest

from gain_apps.evaluate import build_parser, main
from gain_apps.evaluation.flag_defaults import parse_with_config
from gain_core.errors import ConfigError


@pytest.fixture
def parse(tmp_path):
    """Arguments parsed with a file of the given text."""

    def parser(text, *flags):
        path = tmp_path / "experiment.toml"
        path.write_text(text)
        return parse_with_config(build_parser(), ["bed.npz", "--config", str(path), *flags])

    return parser


def test_file_wins_over_defaults_and_flags_win_over_the_file(parse):
    args = parse('batch-size = 16\nseed = 3\norder = "sorted"', "--seed", "5")
    assert (args.batch_size, args.seed, args.order) == (16, 5, "sorted")
    assert args.bins == 20


def test_a_flag_that_repeats_the_default_still_wins(parse):
    assert parse("batch-size = 16", "--batch-size", "64").batch_size == 64


def test_lists_are_arrays_or_text_with_commas(parse):
    text = 'methods = ["tracked", "neo"]\ndomains = "fog,frost"\nseverity = [3, 5]'
    args = parse(text)
    assert args.methods == ("tracked", "neo")
    assert args.domains == ("fog", "frost")
    assert args.severity == (3.0, 5.0)
    assert parse("severity = 2").severity == (2.0,)


def test_paths_and_switches(parse):
    args = parse('cache = "features"\nno-diagnosis = true\ndelta = 2')
    assert args.cache.name == "features"
    assert args.no_diagnosis is True
    assert args.delta == 2.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "batchsize = 16", r"unknown key batchsize; known keys are batch-size", id="key"
        ),
        pytest.param('config = "x"', r"unknown key config", id="config-in-config"),
        pytest.param('batch-size = "16"', r"batch-size: expected int, got '16'", id="text"),
        pytest.param("seed = true", r"seed: expected int, got True", id="bool"),
        pytest.param('order = "best"', r"order: expected one of list, .* got 'best'", id="choice"),
        pytest.param("no-diagnosis = 1", r"no-diagnosis: expected true or false", id="switch"),
        pytest.param("severity = []", r"severity: expected .* list of them, got \[\]", id="empty"),
        pytest.param('severity = ["x"]', r"severity: expected numbers separated", id="number"),
        pytest.param("batch-size = ", r"expected TOML", id="no-toml"),
    ],
)
def test_what_no_flag_takes_is_refused(parse, text, message):
    with pytest.raises(ConfigError, match=r"--config .*experiment\.toml: .*" + message) as raised:
        parse(text)
    assert "\n" not in str(raised.value)


def test_experiment_runs_as_its_file_says(tmp_path, colour_bed, capsys):
    path, result = tmp_path / "experiment.toml", tmp_path / "result.json"
    path.write_text(f'methods = ["neo"]\nbatch-size = 16\njson = "{result.as_posix()}"\n')
    assert main([str(colour_bed), "--config", str(path)]) == 0, capsys.readouterr().err
    record = json.loads(result.read_text())
    assert list(record["methods"]) == ["source", "neo"]
    assert record["stream"]["batch_size"] == 16


def test_missing_file_is_one_line_and_status_1(tmp_path, colour_bed, capsys):
    assert main([str(colour_bed), "--config", str(tmp_path / "none.toml")]) == 1
    said = capsys.readouterr().err
    assert "none.toml: cannot be read" in said
    assert said.count("\n") == 1
