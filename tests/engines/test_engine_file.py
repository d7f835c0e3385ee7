"""Engine files: what is written is read, and nothing else is taken for one."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gain_core.errors import EngineError
from gain_runtime.files.engine import (
    MAX_HEADER_BYTES,
    EngineHeader,
    engine_path,
    plan_version,
    read_engine,
    write_engine,
)

PLAN = b"vtrt" + bytes(20) + bytes([1, 7, 1, 116]) + b"the rest of the plan"
HEADER = EngineHeader(
    artifact_sha256="ab" * 32,
    library="tensorrt_rtx",
    version="1.7.1.116",
    gpu=None,
    compute_capabilities=(86, 89),
    profile=(1, 1, 8),
    precision="fp16",
    builder_level=None,
    flags=("TF32",),
    plan_sha256=hashlib.sha256(PLAN).hexdigest(),
    log_tail=("a warning",),
)
VERIFIED = {
    "verified": "yes",
    "reference": "net.gain.onnx",
    "reference_precision": "fp32",
    "image_source": "photos",
    "images_drawn": "no",
    "images": 64,
    "batch_sizes": "1, 8",
    "top1_agreement": 1.0,
    "features_cosine_min": 0.9999,
    "logits_cosine_min": 0.9998,
    "logits_max_abs_diff": 0.01,
    "accepted": "",
}


def with_header(values: object, plan: bytes = PLAN) -> bytes:
    text = json.dumps(values).encode()
    return struct.pack("<I", len(text)) + text + plan


def with_fields(**changes: object) -> bytes:
    return with_header({**asdict(HEADER), **changes})


def refusal(data: bytes, folder: Path) -> str:
    path = folder / "net.engine"
    path.write_bytes(data)
    with pytest.raises(EngineError) as caught:
        read_engine(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "net.engine"
    for record in (None, VERIFIED, {"verified": "no", "reason": "no GPU"}):
        header = HEADER if record is None else replace(HEADER, verification=record)
        write_engine(path, header, PLAN)
        engine = read_engine(path)
        assert (engine.path, engine.header, engine.plan) == (path, header, PLAN)
    assert [file.name for file in tmp_path.iterdir()] == ["net.engine"]
    # The layout: length, header, plan.
    data = path.read_bytes()
    (length,) = struct.unpack("<I", data[:4])
    assert json.loads(data[4 : 4 + length])["artifact_sha256"] == HEADER.artifact_sha256
    assert data[4 + length :] == PLAN


def test_failed_write_leaves_nothing(tmp_path):
    folder = tmp_path / "net.engine"
    folder.mkdir()
    (folder / "kept").touch()
    with pytest.raises(EngineError, match="cannot be written"):
        write_engine(folder, HEADER, PLAN)
    assert [file.name for file in tmp_path.iterdir()] == ["net.engine"]


def test_too_long_a_header_is_not_written(tmp_path):
    path = tmp_path / "net.engine"
    with pytest.raises(EngineError, match="header: expected at most"):
        write_engine(path, replace(HEADER, log_tail=("x" * MAX_HEADER_BYTES,)), PLAN)
    assert not list(tmp_path.iterdir())


def test_missing_file_names_the_command(tmp_path):
    assert engine_path(Path("a/net.gain.onnx")) == Path("a/net.gain.engine")
    with pytest.raises(EngineError, match=r"no such file; .*net\.onnx --engine"):
        read_engine(tmp_path / "net.engine")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "a header of 2 to"),
        (b"\xff\xff\xff\xff{}", "4294967295"),
        (struct.pack("<I", MAX_HEADER_BYTES + 1), "a header of 2 to"),
        (struct.pack("<I", 500) + b"{}", "truncated"),
        (struct.pack("<I", 2) + b"{{", "a header in JSON"),
        (struct.pack("<I", 4) + b"\xff\xfe\xfd\xfc", "in JSON"),
        (struct.pack("<I", 9000) + b"[" * 9000, "in JSON"),
        (struct.pack("<I", 5000) + b"9" * 5000, "in JSON"),
        (with_header([1]), "names and values"),
        (with_header({}), "schema 3"),
        (with_fields(schema=4), "a newer version of gain-edge"),
        (with_fields(schema=True), "schema 3, got True"),
        (with_fields(schema=0), "schema 3, got 0"),
        (with_fields(extra=1), "others: extra"),
        (with_fields(artifact_sha256="a\nb", gpu=1), "valid gpu"),
        (with_header(asdict(HEADER), PLAN[:-1]), "other bytes"),
        (with_fields(version="1.6.0.1"), "one of 1.7.1.116"),
    ],
)
def test_hostile_file_is_one_clear_line(data, words, tmp_path):
    assert words in refusal(data, tmp_path)


INVALID = {
    "precision": ["fp8", ["fp16"]],
    "version": [3],
    "gpu": [[]],
    "library": [None],
    "compute_capabilities": [86, [], [True]],
    "profile": [[1, 8], [1, 8, 4], [0, 1, 4]],
    "flags": [[1]],
    "log_tail": ["x"],
    "builder_level": ["3"],
    "verification": [
        *("yes", {}, {"verified": "no"}, {"verified": ["yes"]}),
        {key: value for key, value in VERIFIED.items() if key != "images_drawn"},
        VERIFIED | {"images": 1.5},
        VERIFIED | {"top1_agreement": float("nan")},
        VERIFIED | {"reference": "a\x1b[2J"},
    ],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in INVALID.items() for value in values]
)
def test_invalid_field_is_named(field, value, tmp_path):
    assert f"valid {field}" in refusal(with_fields(**{field: value}), tmp_path)


@pytest.mark.parametrize(("schema", "missing"), [(1, "precision"), (2, "verification")])
def test_engine_of_an_earlier_schema_is_said_to_be_old(tmp_path, schema, missing):
    values = {**asdict(HEADER), "schema": schema}
    del values[missing]
    message = refusal(with_header(values), tmp_path)
    assert f"schema 3, got {schema}" in message
    assert "an older version of gain-edge, build it again with: gain-export" in message
    assert "damaged" not in message


@given(data=st.binary(max_size=200) | st.binary(max_size=80).map(lambda b: b"\x10\0\0\0" + b))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_arbitrary_bytes_are_refused(data, tmp_path):
    refusal(data, tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(name=st.sampled_from(sorted(asdict(HEADER))), value=json_values)
@example(name="flags", value=[])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_field_of_any_value_is_read_or_refused(name, value, tmp_path):
    path = tmp_path / "net.engine"
    path.write_bytes(with_fields(**{name: value}))
    try:
        header = read_engine(path).header
    except EngineError as err:
        message = str(err)
    else:
        message = str(path)
        read = getattr(header, name)
        assert (list(read) if isinstance(read, tuple) else read) == value
    assert message.startswith(str(path))
    assert "\n" not in message


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ({"artifact_sha256": "cd" * 32}, "artifact_sha256: built with ab"),
        ({"library": "tensorrt"}, "library: built with tensorrt_rtx"),
        ({"version": "1.8.0.1"}, "version: built with 1.7.1.116, expected 1.8.0.1"),
        ({"gpu": "Orin"}, "gpu: built with None, expected Orin"),
        ({"compute_capability": 87}, "compute_capability: built for 86, 89, expected 87"),
        ({"profile": (1, 1, 16)}, "profile: built with 1, 1, 8"),
    ],
)
def test_difference_names_the_field(expected, words):
    assert HEADER.difference({**asdict(HEADER), "compute_capability": 89}) is None
    difference = HEADER.difference({"flags": ("TF32",), **expected})
    assert difference is not None
    assert difference.startswith(words)


@pytest.mark.parametrize(
    ("flags", "expected", "fits"),
    [
        (["AMPERE_PLUS"], {"gpu": "NVIDIA L4"}, True),
        (["AMPERE_PLUS"], {"compute_capability": 120}, True),
        (["AMPERE_PLUS"], {"compute_capability": 75}, False),
        (["AMPERE_PLUS"], {"version": "1.8.0"}, False),
        (["VERSION_COMPATIBLE"], {"version": "1.8.0"}, True),
        (["VERSION_COMPATIBLE"], {"version": "1.10.0"}, True),
        (["VERSION_COMPATIBLE"], {"version": "1.7.1.116"}, True),
        (["VERSION_COMPATIBLE"], {"version": "1.7.0.9"}, False),
        (["VERSION_COMPATIBLE"], {"version": "2.0.0"}, False),
        (["VERSION_COMPATIBLE"], {"version": "dev"}, False),
        (["VERSION_COMPATIBLE"], {"compute_capability": 87}, False),
    ],
)
def test_compatible_engines_fit_more(flags, expected, fits):
    header = replace(HEADER, flags=tuple(flags))
    assert (header.difference(expected) is None) == fits


def test_host_code_comes_with_the_runtime_in_the_plan():
    runtime = ("VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME")
    found = [replace(HEADER, flags=flags).carries_host_code for flags in ((), runtime[:1], runtime)]
    assert found == [False, True, False]


@pytest.mark.parametrize(
    ("plan", "library", "version"),
    [
        (PLAN, "tensorrt_rtx", "1.7.1.116"),
        (b"ftrt" + bytes(20) + bytes([10, 3, 0, 26]), "tensorrt", "10.3.0.26"),
        (PLAN, "tensorrt", None),
        (PLAN, "other", None),
        (PLAN[:27], "tensorrt_rtx", None),
    ],
)
def test_plan_version(plan, library, version):
    assert plan_version(plan, library) == version
