"""`gain-eval` from the command line, on feature dumps and on real images through a real session."""

import json
import re

import numpy as np
import onnx
import pytest
from without import OPTIONAL, run_without

from gain_apps.evaluate import main
from gain_core import config_to_dict, preset

METRICS = {"accuracy", "ece", "nll", "brier"}


@pytest.fixture
def run(tmp_path, capsys):
    """Run the command; its exit status, the parsed result and what it said."""

    def runner(*arguments, status=0):
        path = tmp_path / "result.json"
        path.unlink(missing_ok=True)
        given = [*map(str, arguments), "--cache", str(tmp_path / "cache"), "--json", str(path)]
        assert main(given) == status, capsys.readouterr().err
        said = capsys.readouterr()
        return json.loads(path.read_text()) if path.exists() else None, said

    return runner


def test_dump_scores_every_method(run, colour_dump):
    methods = ["shift", "neo", "foa-shift", "paper:rule=full"]
    flags = ("--set=diagnose=true", "--batch-size", "16")
    result, said = run(colour_dump, "--methods", ",".join(methods), *flags)
    assert list(result["methods"]) == ["source", *methods]
    for record in result["methods"].values():
        assert set(record) >= METRICS
        assert set(record["domains"]) == {"frost", "fog"}
        for name in METRICS:
            mean = np.mean([record["domains"][domain][name] for domain in ("fog", "frost")])
            assert record[name] == pytest.approx(mean)
            assert record["mean_over_domains"][name] == record[name]
        assert set(record["whole_stream"]) == METRICS
    assert result["counting"] == "mean over domains, then over rounds"
    assert result["bins"]["num_bins"] == 20
    assert result["stream"]["samples"] == 180
    assert len(result["model"]["sha256"]) == 64
    config = result["methods"]["shift"]["configuration"]["config"]
    assert config == json.loads(json.dumps(config_to_dict(preset("shift"))))
    assert result["methods"]["paper:rule=full"]["gain"]["share_at_one"] > 0.3
    assert "shift" in said.out
    assert said.err == ""


def test_source_scores_by_hand(run, colour_dump):
    result, _ = run(colour_dump, "--methods", "source", "--domains", "fog")
    with np.load(colour_dump) as dump:
        logits = dump["fog"].astype(np.float32) @ dump["weight"].T
        right = logits.argmax(axis=1) == dump["labels"]
    assert result["methods"]["source"]["accuracy"] == pytest.approx(100 * right.mean())


def test_seeds_are_runs(run, colour_dump):
    result, _ = run(colour_dump, "--seeds", "3", "--set=seed=4", "--methods", "neo")
    assert result["seeds"] == [4, 5, 6]
    record = result["methods"]["neo"]
    assert [entry["seed"] for entry in record["runs"]] == [4, 5, 6]
    mean = np.mean([entry["accuracy"] for entry in record["runs"]])
    assert record["accuracy"] == pytest.approx(mean)
    assert record["std_over_runs"]["nll"] > 0


def test_mds_is_counted_over_the_whole_stream(run, colour_dump):
    result, _ = run(colour_dump, "--stream", "mds", "--methods", "neo")
    record = result["methods"]["neo"]
    assert result["counting"] == "pooled over the stream"
    assert {name: record[name] for name in METRICS} == record["whole_stream"]


def test_lha_reports_its_rounds(run, colour_dump):
    result, _ = run(colour_dump, "--stream", "lha:rounds=3", "--methods", "neo")
    rounds = result["methods"]["neo"]["rounds"]
    assert len(rounds) == 3
    assert result["methods"]["neo"]["ece"] == pytest.approx(np.mean([r["ece"] for r in rounds]))
    assert result["methods"]["source"]["rounds"][0]["nll"] == pytest.approx(
        result["methods"]["source"]["rounds"][2]["nll"]
    )


@pytest.mark.parametrize("batch_size", [1, 1000])
def test_extreme_batch_sizes(run, colour_dump, batch_size):
    methods = "shift,paper,neo,neo-continual,foa-shift,t3a,lame,dota,recentre"
    result, _ = run(colour_dump, "--batch-size", batch_size, "--methods", methods)
    assert len(result["methods"]) == 10


def test_images_corrupted_on_the_way(run, artifact, colours, tmp_path):
    folder = colours.folders(tmp_path / "data")
    flags = ("--domains", "gaussian_noise,contrast", "--severity", "1,5", "--set=views=2")
    arguments = (artifact, folder, *flags, "--methods", "shift,foa-shift,dota", "--batch-size", 8)
    result, _ = run(*arguments)
    assert result["severities"] == [1.0, 5.0]
    assert result["stream"]["samples"] == 2 * 2 * 24
    runs = result["methods"]["source"]["runs"]
    assert [entry["severity"] for entry in runs] == [1.0, 5.0]
    assert runs[0]["accuracy"] > 90
    assert result["model"]["normalise"] == "timm"
    entries = sorted((tmp_path / "cache").glob("*.npy"))
    # 2 domains x 2 severities x 2 views, and the clean images.
    assert len(entries) == 9
    times = [path.stat().st_mtime_ns for path in entries]
    again, _ = run(*arguments)
    assert [path.stat().st_mtime_ns for path in entries] == times
    assert again["methods"]["shift"]["runs"] == result["methods"]["shift"]["runs"]


def test_an_artifact_with_logits_only_takes_the_default_and_no_method_on_features(
    run, artifact, colours, tmp_path
):
    model = onnx.load(artifact)
    del model.graph.output[0]
    kept = {"gain.features_name", "gain.feature_dim", "gain.head"}
    items = [(item.key, item.value) for item in model.metadata_props if item.key not in kept]
    onnx.helper.set_model_props(model, dict(items))
    bare = tmp_path / "logits.onnx"
    onnx.save(model, bare)
    folder = colours.folders(tmp_path / "data", per_class=20)
    flags = ("--domains", "contrast", "--batch-size", "8")
    result, _ = run(bare, folder, *flags, "--methods", "shift")
    whole, _ = run(artifact, folder, *flags, "--methods", "shift")
    assert result["methods"]["source"]["accuracy"] == whole["methods"]["source"]["accuracy"]
    assert result["methods"]["shift"]["accuracy"] == pytest.approx(
        whole["methods"]["shift"]["accuracy"], abs=2.0
    )
    for method in ("paper", "neo", "lame"):
        _, said = run(bare, folder, *flags, "--methods", method, status=1)
        assert f"{method}: needs features, and the network has logits only" in said.err


def test_ramp_needs_every_severity(run, artifact, colours, tmp_path):
    folder = colours.folders(tmp_path / "data", per_class=6)
    arguments = ("--domains", "contrast", "--methods", "neo")
    result, _ = run(artifact, folder, "--stream", "ramp", *arguments)
    assert result["severities"] == [1, 2, 3, 4, 5]
    # And the clean images.
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 6


def test_tree_with_a_list_is_streamed_in_its_order(run, artifact, colours, tmp_path):
    tree = colours.tree(tmp_path / "tree", ["fog", "snow"], size=(32, 32))
    listed = tmp_path / "ids.txt"
    listed.write_text("n00000003/1.png\nn00000001/0.png\nn00000002/1.png\n")
    arguments = (
        artifact,
        tree,
        "--domains",
        "fog,snow",
        "--image-list",
        listed,
        "--methods",
        "neo",
    )
    result, _ = run(*arguments)
    assert result["stream"]["order"] == "list"
    assert result["stream"]["samples"] == 6
    assert result["methods"]["source"]["accuracy"] == 100
    _, said = run(*arguments, "--seeds", "2", status=1)
    assert "seeds: csc in list order is the same stream for every seed" in said.err


def test_classes_with_images_only(run, artifact, colours, tmp_path):
    for label in (0, 2):
        for number in range(4):
            colours.save(tmp_path / "data" / colours.names[label] / f"{number}.png", label, number)
    arguments = (artifact, tmp_path / "data", "--domains", "clean")
    everything, _ = run(*arguments, "--methods", "shift")
    present, _ = run(*arguments, "--methods", "shift", "--set=class-subset=present")
    assert everything["model"]["num_classes"] == 3
    assert present["model"]["num_classes"] == 2
    assert present["methods"]["source"]["accuracy"] == 100
    assert present["methods"]["source"]["nll"] < everything["methods"]["source"]["nll"]


def test_recording_is_shown_as_it_is(run, roadsigns):
    drive = "test://drive?frames=60&conditions=clear,fog&resolution=crop"
    flags = ("--stream", "recorded", "--methods", "neo", "--batch-size", "8")
    result, _ = run(roadsigns, drive, *flags)
    assert result["stream"]["domains"] == ["clear", "fog"]
    record = result["methods"]["source"]
    # The sign's region is cut out: of whole frames nothing could be read.
    assert record["domains"]["clear"]["accuracy"] > 80
    assert record["series"]["segments"] == [[0, 0], [30, 1]]


def test_damaged_image_is_named_and_nothing_of_it_is_cached(run, artifact, colours, tmp_path):
    folder = colours.folders(tmp_path / "data", per_class=2)
    (folder / "green" / "1.png").write_bytes(b"no image")
    arguments = (artifact, folder, "--domains", "contrast")
    _, said = run(*arguments, "--methods", "neo", status=1)
    assert "green/1.png: expected a readable image" in said.err
    colours.save(folder / "green" / "1.png", 1, 1)
    result, _ = run(*arguments, "--methods", "neo")
    assert result["stream"]["samples"] == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--stream", "ramp"), "a dump was made at one severity"),
        (("--severity", "9"), r"severity: expected numbers in \[0, 5\], got 9"),
        (("--set=views=2",), "views: a dump holds features, not images"),
        (("--stream", "recorded"), "for test:// sources only"),
        (("--methods", "neo,neo"), "methods: neo given more than once"),
        (("--domains", "smoke"), "no domain smoke; it has clean, fog, frost"),
        (("--seeds", "0"), "seeds: expected at least 1"),
        (("--timm", "vit"), "--timm, --weights: expected both"),
        (("--set=order=up",), "--set order: expected one of list"),
        (("--stream", "few", "--set=order=sorted"), "stream few has an order of its own"),
        (("--report", "r.pdf"), "expected a report called"),
        (("--report", "/nowhere/r.html"), "expected an existing folder"),
    ],
)
def test_bad_requests_are_one_line(run, colour_dump, arguments, message, capsys):
    result, said = run(colour_dump, *arguments, status=1)
    assert result is None
    assert said.err.count("\n") == 1
    assert said.err.startswith("gain-eval: error: ")
    assert re.search(message, said.err)


def test_an_artifact_goes_with_data_that_is_no_dump(run, artifact, colour_dump):
    _, said = run(artifact, status=1)
    assert "expected DATA beside an artifact" in said.err
    _, said = run(artifact, colour_dump, status=1)
    assert "give it alone" in said.err


def test_result_on_stdout_is_one_object(colour_dump, capsys):
    assert main([str(colour_dump), "--methods", "neo", "--json", "-"]) == 0
    said = capsys.readouterr()
    assert "neo" in json.loads(said.out)["methods"]
    assert "accuracy" in said.err


def test_compare(colour_dump, tmp_path, capsys):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, methods in zip(paths, ("neo,shift", "shift,recentre"), strict=True):
        assert main([str(colour_dump), "--methods", methods, "--json", str(path)]) == 0
    capsys.readouterr()
    assert main(["compare", *map(str, paths), "--json=-"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["method"] for row in rows] == ["source", "shift"]
    assert rows[0]["accuracy"][2] == 0
    assert main(["compare", *map(str, paths)]) == 0
    assert "source" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "expected a result file"),
        ('{"a": 1}', "expected a result of gain-eval"),
        ('{"schema": 99, "methods": {}}', "expected result schema 1, got 99"),
    ],
)
def test_compare_refuses_other_files(text, message, tmp_path, capsys):
    path = tmp_path / "a.json"
    path.write_text(text)
    assert main(["compare", str(path), str(path)]) == 1
    assert message in capsys.readouterr().err


# Those of GAIN are left out without it.
@pytest.mark.parametrize(("methods", "pictures"), [("shift,neo", 6), ("neo", 4)])
def test_report_as_html_and_markdown(run, colour_dump, tmp_path, methods, pictures):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    run(colour_dump, "--methods", methods, "--report", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert text.count("data:image/png;base64,") == pictures
    assert "Accuracy / ECE per domain" in text
    result, page = tmp_path / "result.json", tmp_path / "r.md"
    assert main(["report", str(result), "--output", str(page)]) == 0
    assert len(list(tmp_path.glob("r-*.png"))) == pictures
    assert "![Accuracy over the stream](r-accuracy.png)" in page.read_text()


MAIN = "from gain_apps.evaluate import main\nsys.exit(main(sys.argv[1:]))\n"
BLOCKED = (*OPTIONAL, "onnxruntime")


def test_dumps_need_no_optional_library(colour_dump):
    methods = ("--methods", "shift,lame,t3a,dota")
    ran = run_without(BLOCKED, MAIN, colour_dump, *methods, "--json", "-")
    assert ran.returncode == 0, ran.stderr
    assert "shift" in json.loads(ran.stdout)["methods"]


def test_report_without_matplotlib_says_what_to_install(colour_dump, tmp_path):
    flags = ("--methods", "neo", "--report", tmp_path / "r.html")
    ran = run_without(BLOCKED, MAIN, colour_dump, *flags)
    assert ran.returncode == 1
    assert "pip install -e '.[eval]'" in ran.stderr
