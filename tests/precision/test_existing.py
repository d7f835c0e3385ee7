"""The file in lower precision that is there already: taken if it is what is asked for."""

import json

import onnx
import pytest

from gain_core.errors import ArtifactError, EngineError, ParityError
from gain_export.precision import convert_precision, existing_precision, precision_path


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
        assert found.to_dict() == written.to_dict() | {"written": False}
        assert existing_precision(path, precision).sha256 == written.sha256


def test_folder_without_a_name_is_found_again(conv_artifact, signs, monkeypatch):
    path = conv_artifact()
    monkeypatch.chdir(signs(3))
    convert_precision(path, "int8", calibration_images=".")
    assert not existing_precision(path, "int8", calibration_images=".").written


def test_artifact_that_changed_since_is_named(conv_artifact):
    path = conv_artifact()
    convert_precision(path, "fp16")
    model = onnx.load(path)
    model.doc_string = "changed"
    onnx.save(model, path)
    with pytest.raises(ArtifactError, match=r"does not fit: reference_sha256: .*--force makes it"):
        existing_precision(path, "fp16")


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


def test_file_in_another_precision_is_named(conv_artifact):
    path = conv_artifact()
    convert_precision(path, "fp16").path.rename(precision_path(path, "bf16"))
    with pytest.raises(ArtifactError, match="precision: made with fp16, expected bf16"):
        existing_precision(path, "bf16")


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
