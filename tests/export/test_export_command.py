"""The command gain-export: roads, flags, streams, exit codes, absent libraries."""

from __future__ import annotations

import json

import onnx
import pytest
from without import OPTIONAL, run_without

import gain_export
from gain_apps.export import main
from gain_core.errors import ConfigError
from gain_export import export_onnx
from gain_runtime.files.artifact import load_artifact

MEAN, STD = ["--mean", "0.5", "0.5", "0.5"], ["--std", "0.25", "0.25", "0.25"]
FLAGS = [*MEAN, *STD, "--crop-pct", "1", "--interpolation", "bilinear"]


MAIN = "from gain_apps.export import main\nsys.exit(main(sys.argv[1:]))\n"


def test_an_onnx_file_is_exported(classifier, saved, capsys):
    path = saved(classifier.plain())
    assert main([str(path), *FLAGS]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "labels     none known: numbered" in captured.err
    assert "net.gain.onnx" in captured.err
    assert "bilinear, center crop 1" in captured.err
    assert "top-1 100.0% (" in captured.err
    assert "verified   against the output of net.onnx" in captured.err
    assert load_artifact(path.with_name("net.gain.onnx")).manifest.feature_dim == 6


def test_json_is_one_object_on_standard_output(classifier, saved, capsys):
    path = saved(classifier.plain())
    assert main([str(path), *FLAGS, "--json=-", "--output", str(path.with_name("a.onnx"))]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert captured.out.count("\n") == 1
    artifact = load_artifact(report["path"])
    assert report["sha256"] == artifact.sha256
    assert report["verification"] == artifact.manifest.verification
    assert report["preprocess"]["mean"] == [0.5, 0.5, 0.5]
    assert "WARNING: labels" in captured.err


def refused(capsys, *arguments):
    """The one line of a refused command."""
    assert main(list(map(str, arguments))) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("gain-export: ")
    return lines[0]


def test_missing_preprocessing_is_one_line(classifier, saved, capsys):
    line = refused(capsys, saved(classifier.plain()), *MEAN, "--labels", "none.txt")
    assert all(flag in line for flag in ("--std", "--crop-pct", "--interpolation", "--like"))
    # Given, and known from the graph.
    assert "--mean" not in line
    assert "--img-size" not in line


def test_an_unknown_name_lists_the_aliases(tmp_path, capsys):
    line = refused(capsys, tmp_path / "vit_b17.onnx")
    assert "no such file" in line
    assert "vit_b16" in line


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--weights", "a.pth"], "--weights: belongs to the export of a timm model"),
        (["--set=random-weights=true"], "--set random-weights: belongs to the export of a timm"),
        (["--set=opset=18"], "--set opset: belongs to"),
        (["--img-size", "1", "2", "3"], "one number or H W, got 3"),
    ],
)
def test_flags_of_the_other_road_are_refused(classifier, saved, capsys, flags, reason):
    assert reason in refused(capsys, saved(classifier.plain()), *FLAGS, *flags)


def test_flags_of_the_onnx_road_are_refused_for_a_model(tmp_path, capsys):
    line = refused(capsys, tmp_path / "vit_b16.onnx", "--head", "x")
    assert "--head: belongs to the export of an existing ONNX file" in line
    assert "--set random-weights" in refused(capsys, tmp_path / "vit_b16.onnx", "--set=seed=3")


def test_candidates_are_listed_and_chosen(classifier, saved, capsys):
    nodes = [
        onnx.helper.make_node("Gemm", ["hidden", "w"], [name], transB=1, name=f"/{name}/Gemm")
        for name in ("main", "aux")
    ]
    path = saved(classifier.model(nodes, {"w": classifier.weight}, outputs=("main", "aux")))
    line = refused(capsys, path, *FLAGS)
    assert "'main' (5, no activation)" in line
    assert "'aux' (5, no activation)" in line
    assert main([str(path), *FLAGS, "--output-name", "aux", "--json=-"]) == 0
    assert main([str(path), *FLAGS, "--head", "/aux/Gemm", "--json=-", "--force"]) == 0


def test_like_takes_the_preprocessing_of_an_alias(classifier, saved, capsys):
    pytest.importorskip("timm", reason="the extra export is not installed")
    model = classifier.plain()
    path = saved(model)
    assert main([str(path), "--like", "efficientnet_lite0", "--crop-pct", "0.5", "--json=-"]) == 0
    spec = json.loads(capsys.readouterr().out)["preprocess"]
    assert (spec["interpolation"], spec["crop_fraction"]) == ("bicubic", 0.5)
    assert spec["mean"] == pytest.approx([127 / 255] * 3)
    assert (spec["height_px"], spec["width_px"]) == (8, 8)


def test_an_alias_is_exported(tmp_path, capsys):
    timm = pytest.importorskip("timm", reason="the extra export is not installed")
    torch = pytest.importorskip("torch", reason="the extra export is not installed")
    path, weights = tmp_path / "resnet18.onnx", tmp_path / "a.pth"
    torch.save(timm.create_model("resnet18", num_classes=3).state_dict(), weights)
    assert main([str(path), "--weights", str(weights), "--img-size", "32", "--json=-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["num_classes"], report["preprocess"]["height_px"]) == (3, 32)
    assert report["source"] == "timm/resnet18.a1_in1k (a.pth)"
    assert load_artifact(path).manifest.source == report["source"]


def test_what_an_alias_was_exported_to_is_replaced_by_force_only(
    classifier, saved, monkeypatch, capsys
):
    path = saved(classifier.plain())
    artifact = path.with_name("resnet18.onnx")
    assert main([str(path), *FLAGS, "--output", str(artifact)]) == 0
    capsys.readouterr()
    calls = []

    def exported(name, output, **settings):
        calls.append((name, output, settings["force"]))
        raise ConfigError("stop here")

    monkeypatch.setattr(gain_export, "export_timm", exported, raising=False)
    refused(capsys, artifact)
    refused(capsys, artifact, "--force")
    assert calls == [("resnet18", artifact, False), ("resnet18", artifact, True)]
    other = artifact.rename(path.with_name("mine.onnx"))
    assert "got an artifact" in refused(capsys, other)


def test_an_interrupt_exits_with_130_and_leaves_nothing(classifier, saved, monkeypatch, capsys):
    def interrupted(*args, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("gain_export.write.verify", interrupted)
    path = saved(classifier.plain())
    assert main([str(path), *FLAGS]) == 130
    assert [item.name for item in path.parent.iterdir()] == ["net.onnx"]
    assert "interrupted" in capsys.readouterr().err


def test_debug_adds_the_traceback(tmp_path, capsys):
    assert main([str(tmp_path / "no.onnx"), "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_importing_the_package_imports_nothing_heavy():
    code = "import gain_export\nassert 'onnx' not in sys.modules\n"
    code += "from gain_export import export_onnx, PreprocessOverrides\n"
    result = run_without(OPTIONAL, code)
    assert result.returncode == 0, result.stderr


def test_surgery_works_without_torch(classifier, saved):
    path = saved(classifier.plain())
    result = run_without(OPTIONAL, MAIN, path, *FLAGS)
    assert result.returncode == 0, result.stderr
    assert load_artifact(path.with_name("net.gain.onnx")).manifest.num_classes == 5


@pytest.mark.parametrize("arguments", [["vit_b16.onnx"], ["{path}", "--like", "vit_b16"]])
def test_without_torch_the_extra_is_named(classifier, saved, arguments):
    path = saved(classifier.plain())
    result = run_without(OPTIONAL, MAIN, *(item.format(path=path) for item in arguments))
    assert result.returncode == 1
    assert "pip install -e '.[export]'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_every_step_is_announced(classifier, saved, spec):
    steps: list[str] = []
    report = export_onnx(saved(classifier.plain()), preprocess=spec, on_step=steps.append)
    expected = ["read", "run original", "settle", "surgery", "verify", "write"]
    assert steps == list(report.seconds) == expected
    assert all(seconds >= 0.0 for seconds in report.seconds.values())
