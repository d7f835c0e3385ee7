"""Artifacts in lower precision: verified, refused, described, made adaptive."""

import json
from dataclasses import replace

import onnx
import pytest

from gain_apps.export import main
from gain_core.errors import ArtifactError, ConfigError, EngineError, ParityError
from gain_export.adaptive import add_adaptation
from gain_export.precision import BARS, convert_precision, existing_precision, precision_path
from gain_export.precision.bars import Bar, Drift
from gain_runtime.files.artifact import load_artifact

IMPOSSIBLE = Bar(top1_agreement=1.0, cosine=1.0001)
COSINES = {"features_cosine_min": 1.0, "logits_cosine_min": 1.0}
NO_DRIFT = Drift(images=9, top1_agreement=1.0, **COSINES, logits_max_abs_diff=0.0)


@pytest.mark.parametrize(("precision", "share"), [("fp16", 0.52), ("int8", 0.29)])
def test_road_sign_vit_passes_its_bar_and_shrinks(converted, roadsigns, precision, share):
    report = converted[precision]
    assert report.drift is not None
    assert report.drift.misses(BARS[precision]) == []
    assert report.drift.images == 24
    assert report.accepted == ()
    assert report.path == precision_path(roadsigns, precision)
    assert report.size_bytes < share * report.float32_bytes
    manifest, source = (load_artifact(path).manifest for path in (report.path, roadsigns))
    assert manifest.verification["precision"] == precision
    assert manifest.labels == source.labels
    assert manifest.head == source.head


def test_conv_net_in_fp16_and_int8(conv_artifact, signs, capsys):
    path, folder = conv_artifact(), str(signs(3))
    flags = ["--calibrate", folder, "--json=-"]
    for precision in ("fp16", "int8"):
        assert main([str(path), "--precision", precision, *flags]) == 0
        record = json.loads(capsys.readouterr().out)["precision"]
        assert record["drift"]["top1_agreement"] >= BARS[precision].top1_agreement
        target = path.with_name(f"conv.{precision}.gain.onnx")
        assert record["path"] == str(target)
        model = onnx.load(target)
        assert {item.key: item.value for item in model.metadata_props}["author"] == "tests"
        assert main([str(path), "--precision", precision, *flags]) == 1
        assert "exists already" in capsys.readouterr().err
        assert main([str(target), "--precision", "fp16"]) == 1
        assert f"expected a float32 artifact, got one in {precision}" in capsys.readouterr().err


def test_overflow_is_refused_even_where_drift_is_allowed(conv_artifact):
    path = conv_artifact(scale=5e4)
    with pytest.raises(ParityError, match="the largest fp16 number"):
        convert_precision(path, "fp16", allow_drift=True)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_below_the_bar_is_refused_unless_allowed(conv_artifact, monkeypatch, capsys):
    path = conv_artifact()
    monkeypatch.setattr("gain_export.precision.convert.BARS", {"fp16": IMPOSSIBLE})
    assert main([str(path), "--precision", "fp16"]) == 1
    error = capsys.readouterr().err
    assert "smallest cosine" in error
    assert "--allow-drift" in error
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert main([str(path), "--precision", "fp16", "--allow-drift"]) == 0
    said = capsys.readouterr().err
    assert "accepted   features: smallest cosine" in said
    assert "on 12 images drawn here, no photographs (synthetic" in said
    target = precision_path(path, "fp16")
    assert load_artifact(target).manifest.verification["images_drawn"] == "yes"


def test_without_a_method_the_second_is_tried_where_the_first_misses(
    conv_artifact, signs, monkeypatch, capsys
):
    path, folder = conv_artifact(), str(signs(3))
    judged = []

    def strict(model, /, **settings):
        judged.append(model)
        return NO_DRIFT, ("too far",) if len(judged) % 2 else ()

    monkeypatch.setattr("gain_export.precision.convert._verified", strict)
    convert_precision(path, "int8", calibration_images=folder)
    written = load_artifact(precision_path(path, "int8")).manifest.verification
    assert (len(judged), written["calibration"]) == (2, "percentile")
    with pytest.raises(ParityError):
        convert_precision(path, "int8", calibration_images=folder, calibration="minmax", force=True)
    # What was written before the refusal is said.
    judged.clear()
    arguments = ["--precision", "int8", "--set=int8-ranges=minmax", "--calibrate", folder]
    assert main([str(path), *arguments, "--force"]) == 1
    assert f"(written before: the fitness report in {path})" in capsys.readouterr().err


def test_where_both_methods_miss_the_nearer_is_taken(conv_artifact, signs, monkeypatch):
    path, folder = conv_artifact(), str(signs(3))
    monkeypatch.setattr("gain_export.precision.convert.BARS", {"int8": IMPOSSIBLE})

    def smallest(calibration=None):
        settings = {"calibration_images": folder, "calibration": calibration}
        with pytest.raises(ParityError, match=r"int8 is too far .* smallest cosine"):
            convert_precision(path, "int8", **settings, force=True)
        report = convert_precision(path, "int8", **settings, force=True, allow_drift=True)
        assert report.drift.top1_agreement == 1.0
        return min(report.drift.features_cosine_min, report.drift.logits_cosine_min)

    alone = [smallest(method) for method in ("minmax", "percentile")]
    assert alone[0] != alone[1]
    for order in (("minmax", "percentile"), ("percentile", "minmax")):
        monkeypatch.setattr("gain_export.precision.convert._CALIBRATIONS", order)
        assert smallest() == max(alone)


def test_bars():
    drift = replace(NO_DRIFT, top1_agreement=0.94, features_cosine_min=0.99, logits_cosine_min=0.97)
    missed = drift.misses(BARS["int8"])
    assert [text.split()[0] for text in missed] == ["top-1", "logits:"]


def test_bfloat16_is_verified_by_emulation(roadsigns, signs, capsys):
    target = precision_path(roadsigns, "bf16")
    flags = ["--precision", "bf16", "--verify-images", str(signs(2))]
    try:
        assert main([str(roadsigns), *flags]) == 0
        numbers = load_artifact(target).manifest.verification
    finally:
        target.unlink(missing_ok=True)
    assert numbers["arithmetic"] == "emulated: float32 on values rounded to bf16"
    assert numbers["images"] == 24
    # Eight bits of mantissa are seen, and no more than they cost.
    assert 1e-3 < numbers["logits_max_abs_diff"] < 1.0
    assert 0.99 < numbers["features_cosine_min"] < 0.9999999
    said = capsys.readouterr().err
    assert "emulated in float32" in said
    assert "drawn" not in said


def test_network_that_cannot_run_here_says_so(conv_artifact, monkeypatch):
    path = conv_artifact()
    # Without the emulation ONNX Runtime's CPU provider has the bfloat16 products themselves to run.
    monkeypatch.setattr("gain_export.precision.convert.emulated", lambda model, low_type: model)
    with pytest.raises(EngineError, match="bf16 cannot be verified"):
        convert_precision(path, "bf16")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    report = convert_precision(path, "bf16", allow_drift=True)
    assert (report.drift, report.emulated) == (None, False)
    assert report.accepted[0].startswith("not verified")
    assert load_artifact(report.path).manifest.verification["verified"] == "no"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--precision", "int8"], "add --calibrate DIR"),
        (["--allow-drift"], "--allow-drift: is a setting"),
        (["--precision", "fp32", "--allow-drift"], "--allow-drift: is a setting"),
        (["--precision", "fp32", "--set=int8-ranges=minmax"], "got fp32"),
        (["--set=int8-ranges=minmax"], "--set int8-ranges: is a setting"),
        (["--precision", "fp16", "--set=int8-ranges=minmax"], "got fp16"),
    ],
)
def test_flags_are_checked_before_anything_is_written(conv_artifact, capsys, flags, words):
    path = conv_artifact()
    before = path.read_bytes()
    assert main([str(path), *flags]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert path.read_bytes() == before


def test_what_is_no_artifact_or_no_precision_is_refused(conv_artifact, tmp_path):
    path, adaptive = conv_artifact(), tmp_path / "conv.adaptive.onnx"
    with pytest.raises(ConfigError, match="expected one of"):
        convert_precision(path, "fp8")
    add_adaptation(path, adaptive)
    with pytest.raises(ArtifactError, match="got an adaptive file"):
        convert_precision(adaptive, "fp16")


def test_fp32_lowers_nothing_and_says_so(conv_artifact, capsys):
    path = conv_artifact()
    before = path.read_bytes()
    assert main([str(path), "--precision", "fp32"]) == 0
    assert capsys.readouterr().err == (
        f"fp32       {path} is float32 already; nothing was lowered\n"
    )
    assert main([str(path), "--precision", "fp32", "--json=-"]) == 0
    record = json.loads(capsys.readouterr().out)["precision"]
    assert (record["path"], record["precision"]) == (str(path), "fp32")
    assert record["written"] is False
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_fp32_of_lower_precision_is_refused(conv_artifact, capsys):
    path = conv_artifact()
    low = convert_precision(path, "fp16").path
    assert main([str(low), "--precision", "fp32"]) == 1
    assert "expected a float32 artifact, got one in fp16" in capsys.readouterr().err
    model = onnx.load(low)
    record = next(item for item in model.metadata_props if item.key == "gain.verification")
    record.value = "{}"
    onnx.save(model, low)
    assert main([str(low), "--precision", "fp32"]) == 1
    assert "came with values in lower precision" in capsys.readouterr().err


@pytest.mark.parametrize(("precision", "name"), [("fp32", "conv"), ("fp16", "conv.fp16")])
def test_adaptive_is_made_of_the_lower_precision(conv_artifact, capsys, precision, name):
    path = conv_artifact()
    command = [str(path), "--precision", precision, "--adaptive", "--json=-"]
    assert main(command) == 0
    target = path.with_name(f"{name}.adaptive.onnx")
    assert json.loads(capsys.readouterr().out)["adaptive"]["path"] == str(target)
    before = target.read_bytes()
    # The one that is there is kept, also where the file before it is made anew.
    precision_path(path, "fp16").unlink(missing_ok=True)
    assert main(command) == 1
    assert f"{target}: exists already; --force" in capsys.readouterr().err
    assert target.read_bytes() == before
    assert not precision_path(path, "fp16").exists()


# The file in lower precision that is there already: taken if it is what is asked for.


def change_record(path, **changes):
    """Rewrites what a file says about its verification; None takes a number out."""
    model = onnx.load(path)
    record = next(item for item in model.metadata_props if item.key == "gain.verification")
    numbers = json.loads(record.value) | changes
    record.value = json.dumps({name: value for name, value in numbers.items() if value is not None})
    onnx.save(model, path)


def test_what_was_written_is_found(conv_artifact, signs):
    path, folder = conv_artifact(), signs(3)
    for precision in ("fp16", "bf16", "int8"):
        written = convert_precision(path, precision, calibration_images=folder)
        found = existing_precision(path, precision, calibration_images=folder)
        assert (written.written, found.written) == (True, False)
        assert not written.images_drawn
        assert found.to_dict() == written.to_dict() | {"written": False}
        assert existing_precision(path, precision).sha256 == written.sha256


def test_folder_without_a_name_is_found_again(conv_artifact, signs, monkeypatch):
    path = conv_artifact()
    monkeypatch.chdir(signs(3))
    convert_precision(path, "int8", calibration_images=".")
    assert not existing_precision(path, "int8", calibration_images=".").written


def test_artifact_that_changed_since_and_another_precision_are_named(conv_artifact):
    path = conv_artifact()
    written = convert_precision(path, "fp16").path
    model = onnx.load(path)
    model.doc_string = "changed"
    onnx.save(model, path)
    with pytest.raises(ArtifactError, match=r"does not fit: reference_sha256: .*--force makes it"):
        existing_precision(path, "fp16")
    written.rename(precision_path(path, "bf16"))
    with pytest.raises(ArtifactError, match="precision: made with fp16, expected bf16"):
        existing_precision(path, "bf16")


def test_other_images_and_ranges_are_named(conv_artifact, signs, tmp_path):
    path, folder = conv_artifact(), signs(3)
    convert_precision(path, "int8", calibration_images=folder)
    for settings, words in (
        ({"calibration": "percentile"}, "calibration: made with minmax, expected percentile"),
        ({"calibration_images": tmp_path / "others"}, "calibration_source: made with"),
        ({"verify_images": tmp_path / "others"}, "image_source: made with .*, expected others"),
    ):
        with pytest.raises(ArtifactError, match=words):
            existing_precision(path, "int8", **settings)


def test_drift_must_be_accepted_again(conv_artifact):
    path = conv_artifact()
    target = convert_precision(path, "fp16").path
    change_record(target, logits_cosine_min=0.9)
    with pytest.raises(ParityError, match=r"logits: smallest cosine 0\.90000"):
        existing_precision(path, "fp16")
    accepted = existing_precision(path, "fp16", allow_drift=True).accepted
    assert len(accepted) == 1
    change_record(target, logits_cosine_min=None)
    with pytest.raises(EngineError, match="was never verified; --allow-drift takes it"):
        existing_precision(path, "fp16")
    assert existing_precision(path, "fp16", allow_drift=True).drift is None
