"""One word per thing in all commands; the words of the release before, with a line of warning."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import defaultdict
from dataclasses import fields

import pytest
from without import HEAVY, OPTIONAL, run_without

from gain_apps import bench, evaluate, export, state, stream
from gain_apps.bench import SETTINGS as BENCH_SETTINGS
from gain_apps.bench import BenchConfig
from gain_apps.evaluate import EvalSettings
from gain_apps.exporting.settings import SETTINGS as EXPORT_SETTINGS
from gain_apps.exporting.settings import ExportSettings
from gain_apps.flags import parse_arguments
from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.plan import read_config_file, read_settings
from gain_apps.streaming.settings import SETTINGS as STREAM_SETTINGS
from gain_core.errors import ConfigError

PARSERS = {
    "stream": stream.build_parser,
    "export": export.build_parser,
    "eval": evaluate.build_parser,
    "bench": bench.build_parser,
    "state": state.build_parser,
    "eval-compare": evaluate._compare_parser,
    "eval-report": evaluate._report_parser,
}
COMMANDS = ("stream", "export", "eval", "bench")
MODULES = {stream: "stream", export: "export", evaluate: "eval", bench: "bench", state: "state"}
# What a record has that a user does not type: `input` and `artifact` are positional, the next
# three are worked out, the benchmark's last two need no other value.
RECORDS = {
    "stream": (StreamConfig, STREAM_SETTINGS, {"input", "photos", "name", "gain", "paused"}),
    "export": (ExportSettings, EXPORT_SETTINGS, set()),
    "eval": (EvalSettings, evaluate.SETTINGS, set()),
    "bench": (BenchConfig, BENCH_SETTINGS, {"artifact", "input", "warm_up", "seed"}),
}
# Command, what else was typed in the release before, and what is typed now.
OLD = """
stream | --batch 4 | --batch-size 4
stream | --threads 2 | --num-threads 2
stream | --device-preprocess |
stream | --json | --json -
stream | --json clip.mp4 | --json - clip.mp4
stream | --no-json |
stream | --headless | --set display=false
stream | --fast-preprocess |
stream | --no-fast-preprocess |
stream | --allow-host-code | --set allow-host-code=true
stream | --check-frames | --set check-frames=true
stream | --no-check-frames | --set check-frames=false
stream | --webhook http://h/?a=b | --set webhook=http://h/?a=b
export | --model resnet18 | --timm resnet18
export | --json | --json -
export | --ema | --set ema=true
export | --no-ema | --set ema=false
export | --random-weights | --set random-weights=true
export | --calibration minmax | --set int8-ranges=minmax
export | --features-only | --set features-only=true
export | --compute-capability 86 89 --force | --set compute-capability=86,89 --force
export | --hardware-compatible | --set hardware-compatible=true
export | --version-compatible | --set version-compatible=true
export | --no-build | --set build=false
eval | --threads 2 | --num-threads 2
eval | --device-preprocess |
eval | --source-data d | --source-images d
eval | --classes c.tsv | --set class-file=c.tsv
eval | --diagnose | --set diagnose=true
eval | --delta 2 --stream cdc | --stream cdc:delta=2
eval | --stream lha --rounds 2 | --stream lha:rounds=2
eval | --stream recurring --visits 2 | --stream recurring:visits=2
eval | --stream one-class --only-class 7 | --stream one-class:class=7
eval | --torch vit=v.pth | --timm vit --weights v.pth
eval | --no-diagnosis |
eval | --verbose |
eval | --bins 15 |
eval-compare | --json | --json -
eval-report | --out r.md | --output r.md
bench | --batch 4 | --batch-size 4
bench | --threads 2 | --num-threads 2
bench | --device-preprocess |
bench | --warm-up 9 |
bench | --seed 9 |
bench | --torch-model vit | --timm vit
bench | --torch-weights v.pth | --weights v.pth
bench | --allow-host-code | --set allow-host-code=true
"""
ROWS = [[cell.strip() for cell in line.split("|")] for line in OLD.strip().splitlines()]
# Flags that are keys of --set of the same name now, and take a value.
for command in COMMANDS:
    for key, _, shown in (setting.partition("=") for setting in RECORDS[command][1]):
        if shown.isupper() and key not in ("int8-ranges", "triton-backend"):
            ROWS.append([command, f"--{key} 1", f"--set {key}=1"])


def parsed(command: str, words: str) -> dict[str, object]:
    files = {"stream": [], "eval-compare": ["a.json", "b.json"]}.get(command, ["net.onnx"])
    seen = vars(parse_arguments(PARSERS[command](), [*files, *shlex.split(words)]))
    if "stream_options" in seen:
        seen["stream"] += seen.pop("stream_options")
    return {name: value for name, value in seen.items() if value is not None}


@pytest.mark.parametrize(("command", "old", "new"), ROWS)
def test_an_old_spelling_is_taken_with_one_line_of_warning(command, old, new, capsys):
    assert parsed(command, old) == parsed(command, new)
    (line,) = capsys.readouterr().err.splitlines()
    name = next(word for word in old.split() if word in hidden(command) or word == "--json")
    assert f"warning: {name} " in line
    today = next((word for word in new.split() if word.startswith("--")), "the next release")
    assert today in line


@pytest.mark.parametrize("command", PARSERS)
def test_every_old_spelling_is_in_the_table(command):
    table = {word for row in ROWS if row[0] == command for word in row[1].split()}
    assert hidden(command) <= table


def hidden(command: str) -> set[str]:
    return {
        name
        for action in PARSERS[command]()._actions
        for name in action.option_strings
        if action.help == argparse.SUPPRESS
    }


def shown(command: str) -> dict[str, argparse.Action]:
    """The flags in `--help`, by their first name."""
    actions = PARSERS[command]()._actions
    return {
        action.option_strings[0]: action
        for action in actions
        if action.option_strings and action.help != argparse.SUPPRESS
    }


@pytest.mark.parametrize("command", MODULES)
def test_help_names_every_flag_and_needs_no_library(command):
    # The evaluation lists its corruptions, which OpenCV draws.
    blocked = OPTIONAL if command is evaluate else HEAVY
    done = run_without(blocked, f"from {command.__name__} import main\nmain(['--help'])\n")
    assert done.returncode == 0, done.stderr
    for name in shown(MODULES[command]):
        assert name in done.stdout


@pytest.mark.parametrize("command", MODULES)
def test_wrong_usage_is_status_2(command, capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(["net.onnx", "--no-such-flag"])
    assert caught.value.code == 2
    assert "usage: gain-" in capsys.readouterr().err


def test_a_word_takes_the_same_in_every_command():
    takes = defaultdict(set)
    for command in PARSERS:
        for name, action in shown(command).items():
            number = action.type if action.type in (int, float) else None
            value = None if action.nargs == 0 else action.metavar
            takes[name].add((value, action.nargs, number, tuple(action.choices or ())))
    for command in COMMANDS:
        for key, _, value in (setting.partition("=") for setting in RECORDS[command][1]):
            for metavar, *_ in takes.get(f"--{key}", ()):
                assert metavar == value, f"{command} --set {key}"
    assert {name: found for name, found in takes.items() if len(found) > 1} == {}
    for word in ("--json", "--set", "--debug"):
        assert all(word in shown(command) for command in COMMANDS), word


@pytest.mark.parametrize("command", COMMANDS)
def test_a_setting_is_a_flag_or_a_key_of_set(command):
    record, settings, others = RECORDS[command]
    keys = {setting.partition("=")[0].replace("-", "_") for setting in settings}
    flags = {name.removeprefix("--").replace("-", "_") for name in shown(command)}
    names = {item.name for item in fields(record)}
    assert keys <= names
    assert not keys & flags
    assert names - keys - flags <= others


def test_keys_of_the_release_before_are_taken_from_a_file(tmp_path, capsys):
    path = tmp_path / "c.toml"
    path.write_text("batch = 2\nthreads = 3\njson = true\n")
    assert read_config_file(path) == {"batch_size": 2, "num_threads": 3, "json": "-"}
    assert capsys.readouterr().err.count("the next release") == 3


def test_fast_preprocessing_of_the_release_before_has_no_effect_and_a_warning(tmp_path, capsys):
    path = tmp_path / "c.toml"
    path.write_text("fast-preprocess = true\nseed = 3\n")
    assert read_config_file(path) == {"seed": 3}
    assert settings_of("--set", "fast-preprocess=true", "--set", "seed=3") == {"seed": 3}
    lines = capsys.readouterr().err.splitlines()
    assert [": fast-preprocess has no effect" in line for line in lines] == [True, True]


def settings_of(*words: str) -> dict[str, object]:
    return read_settings(vars(stream.build_parser().parse_args(words)))[0]


def test_set_takes_every_key_of_the_file_and_the_last_word_wins(tmp_path):
    assert settings_of("--set", "seed=1", "--set", "seed=2") == {"seed": 2}
    assert settings_of("--batch-size", "4", "--set", "batch-size=2") == {"batch_size": 2}
    assert settings_of("--set", "batch-size=2", "--batch-size", "4") == {"batch_size": 4}
    path = tmp_path / "c.toml"
    path.write_text("[gain]\nhalf_life = 7\nkl_bound = 2.0\n")
    found = settings_of("--config", str(path), "--set", "gain.half_life=9")
    assert found == {"gain": {"half_life": 9, "kl_bound": 2.0}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("batches=2", "--set: unknown key batches; known keys are input,"),
        ("update_every=2", "--set: unknown key update_every"),
        ("watchdog=soon", "--set: watchdog: expected float, got 'soon'"),
        ("check-frames=1", "--set: check-frames: expected bool, got '1'"),
    ],
)
def test_what_set_cannot_mean_is_refused_as_in_the_file(given, message):
    with pytest.raises(ConfigError, match=message):
        settings_of("--set", given)


def test_summaries_go_into_the_file_that_json_names(artifact_path, tmp_path, capsys):
    target = tmp_path / "summary.json"
    uris = ["test://pattern?frames=2", "test://pattern?frames=3"]
    flags = ["--model", str(artifact_path), "--json", str(target)]
    assert stream.main([*uris, *flags, "--num-threads", "1"]) == 0
    frames = [json.loads(line)["frames"] for line in target.read_text().splitlines()]
    assert frames == [2, 3]
    assert capsys.readouterr().out == ""
    assert stream.main([uris[0], *flags[:-1], "no/such/s.json"]) == 2
    assert "--json: no/such/s.json: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", [export, evaluate, bench], ids=["export", "eval", "bench"])
def test_a_result_that_nobody_can_read_is_refused_before_any_work(
    command, artifact_path, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("sys.stdout", None)
    given = ["--calibrate", str(tmp_path)] if command is export else [str(tmp_path)]
    assert command.main([str(artifact_path), *given, "--json", "-"]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "--json -: standard output is closed; name a file instead" in message
