"""Suites: what is run, what is kept and run again, and how bars are judged."""

import json

import pytest

from gain_apps.evaluate import main
from gain_apps.evaluation.suite import judge, suite_markdown
from gain_apps.evaluation.suite_file import load_suite, suite_path
from gain_core.errors import ConfigError

SUITE = """
description = "A small one."
methods = ["neo", "recentre"]
seeds = 2

[[input]]
name = "colours"
model = "dump.npz"

[[stream]]
stream = "csc"

[[stream]]
name = "one class"
stream = "one-class"
seeds = 1
methods = ["neo"]

[[bar]]
text = "never far below"
method = "neo"
measure = "worst seed"
at-least = -100
"""


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "suites" / "small.toml"
    path.parent.mkdir()
    path.write_text(SUITE)
    (tmp_path / "results").mkdir()
    return path


def run(suite, dump, *flags):
    assert main(["suite", str(suite), "--inputs", str(dump.parent), *flags]) == 0
    return json.loads((suite.parents[1] / "results" / "small.json").read_text())


def test_a_suite_runs_and_writes_its_tables(suite, colour_dump, capsys):
    report = run(suite, colour_dump)
    assert list(report["cells"]) == ["colours, csc", "colours, one class"]
    seeds = {name: sorted(cell) for name, cell in report["cells"]["colours, csc"].items()}
    assert seeds == {"source": ["0", "1"], "neo": ["0", "1"], "recentre": ["0", "1"]}
    assert list(report["cells"]["colours, one class"]) == ["source", "neo"]
    assert report["bars"][0]["verdict"] == "met"
    table = (suite.parents[1] / "results" / "small.md").read_text()
    assert "| method | colours, csc (2) | colours, one class (1) |" in table
    assert "never far below" in capsys.readouterr().out


def test_only_what_is_missing_or_named_is_run_again(suite, colour_dump):
    target = suite.parents[1] / "results" / "small.json"
    report = run(suite, colour_dump, "--only", "csc", "--seeds", "1")
    assert list(report["cells"]) == ["colours, csc"]
    marked = report["cells"]["colours, csc"]
    for method in ("neo", "recentre"):
        marked[method]["0"]["accuracy"] = -1.0
    target.write_text(json.dumps(report))
    again = run(suite, colour_dump, "--refresh", "neo")["cells"]["colours, csc"]
    assert again["neo"]["0"]["accuracy"] >= 0.0
    assert again["recentre"]["0"]["accuracy"] == -1.0
    assert set(again["recentre"]) == {"0", "1"}
    # All is there: the input is not even looked for.
    colour_dump.unlink()
    run(suite, colour_dump)
    assert run(suite, colour_dump, "--refresh", "neo", "--seeds", "0")["cells"]["colours, csc"]


def test_names_that_cannot_be_looked_at_are_one_line(suite, tmp_path, capsys):
    (tmp_path / "loop").symlink_to("loop")
    for argv, reason in (
        (["suite", "x" * 300], "longer than the file system takes"),
        (["suite", str(suite), "--inputs", "x" * 300], "longer than the file system takes"),
        (["suite", str(suite), "--inputs", str(tmp_path / "loop")], "leads back to itself"),
    ):
        assert main(argv) == 1
        message = capsys.readouterr().err
        assert reason in " ".join(message.split())
        assert "Traceback" not in message


def test_a_missing_input_is_named(suite, tmp_path, capsys):
    assert main(["suite", str(suite), "--inputs", str(tmp_path)]) == 1
    assert "dump.npz: expected the input colours in" in capsys.readouterr().err


BAR = {"text": "t", "measured": None, "verdict": "not run", "where": ""}
CELLS = {
    "a, csc": {
        "source": {"0": {"accuracy": 50.0, "ece": 5.0}, "1": {"accuracy": 52.0, "ece": 5.0}},
        "shift": {"0": {"accuracy": 54.0, "ece": 4.0}, "1": {"accuracy": 50.0, "ece": 5.0}},
        "neo": {"0": {"accuracy": 51.0, "ece": 4.0}, "1": {"accuracy": 52.0, "ece": 5.0}},
    },
    "b, csc": {
        "source": {"0": {"accuracy": 80.0, "ece": 5.0}},
        "shift": {"0": {"accuracy": 77.0, "ece": 8.0}},
        "neo": {"0": {"accuracy": 80.0, "ece": 5.0}},
    },
}


@pytest.mark.parametrize(
    ("bar", "measured", "verdict", "where"),
    [
        ('measure = "worst pair"\nat-least = -0.5', -3.0, "missed by 2.5", "b, csc"),
        ('measure = "worst seed"\nat-least = -3', -3.0, "met", "b, csc"),
        ('measure = "mean change"\nat-least = 0', -1.0, "missed by 1.0", "2 pairs"),
        ('measure = "mean change"\nsource-below = 70\nat-least = 1', 1.0, "met", "1 pairs"),
        ('measure = "mean change"\ninputs = ["b"]\nat-least = 0', -3.0, "missed by 3.0", "1 pairs"),
        (
            'measure = "lead"\nover = ["neo"]\nat-least = 0',
            -1.25,
            "missed by 1.2",
            "2 pairs, over neo",
        ),
        ('measure = "calm pairs"\nat-least = 50', 50.0, "met", "2 pairs"),
        ('measure = "worst ece change"\nat-most = 2', 3.0, "missed by 1.0", "b, csc"),
        ('measure = "worst seed"\nstreams = ["none"]\nat-least = 0', None, "not run", ""),
    ],
)
def test_bars(tmp_path, bar, measured, verdict, where):
    path = tmp_path / "s.toml"
    inputs = "".join(f'[[input]]\nname = "{name}"\nmodel = "x.npz"\n' for name in "ab")
    path.write_text(
        f'{inputs}[[stream]]\nstream = "csc"\n[[bar]]\ntext = "t"\nmethod = "shift"\n{bar}\n'
    )
    suite = load_suite(path)
    (found,) = judge(suite, {"cells": CELLS})
    assert (found["measured"], found["verdict"], found["where"]) == (measured, verdict, where)
    table = suite_markdown(suite, {"cells": CELLS, "bars": [found]})
    assert "| shift | 52.0 / 4.5 (-2.0) | 77.0 / 8.0 (-3.0) |" in table


def test_a_bar_says_how_many_pairs_were_not_run(suite):
    cells = {"colours, csc": CELLS["a, csc"]}
    (found,) = judge(load_suite(suite), {"cells": cells})
    assert found["verdict"] == "met, 1 pairs not run"


def test_a_table_compares_the_seeds_that_all_methods_have(suite):
    cell = {"source": dict(CELLS["a, csc"]["source"]), "neo": dict(CELLS["a, csc"]["neo"])}
    del cell["neo"]["1"]
    table = suite_markdown(load_suite(suite), {"cells": {"colours, csc": cell}, "bars": [BAR]})
    assert "| neo | 51.0 / 4.0 (+1.0) |" in table


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = 2", "sedes = 2", "unknown key sedes"),
        ('"recentre"', '"recenter"', "method: expected one of"),
        ('"one-class"', '"one-klass"', "expected one of csc"),
        ('"dump.npz"', "3", "model: expected another type, got 3"),
        ('"worst seed"', '"worst"', "measure: expected one of"),
        ("at-least = -100", "", "expected at-least or at-most"),
        ('name = "one class"', 'name = "csc"', "stream: csc given; each once"),
    ],
)
def test_a_wrong_suite_is_refused(suite, old, new, message):
    suite.write_text(SUITE.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_suite(suite)


@pytest.mark.parametrize("name", ["camera", "pairs", "ablations", "imagenet"])
def test_the_suites_of_the_project_are_read(name):
    suite = load_suite(suite_path(name))
    assert all(any(True for _ in suite.pairs([each.name])) for each in suite.inputs)


def test_an_unknown_suite_is_named_with_those_there_are():
    with pytest.raises(ConfigError, match=r"one of ablations, camera, imagenet, pairs or a \.toml"):
        suite_path("cameras")
