"""Whatever is read from outside ends in a result or in a `GainError`, and shows no credentials."""

from __future__ import annotations

import json
import string
from contextlib import suppress

import numpy as np
import onnx
import pytest
from eager_adapter import eager
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gain_apps.streaming.config import StreamConfig
from gain_core import preset
from gain_core.errors import ArtifactError, ConfigError, GainError
from gain_export.adaptive import add_adaptation
from gain_export.onnx_file import load_onnx
from gain_runtime.files.adaptive import load_adaptive
from gain_runtime.files.artifact import load_artifact
from gain_runtime.sessions.session import open_session
from gain_runtime.sources.uri import parse_uri, redact

FEW = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# A place in a file as a share of its length, and the byte that is put there.
HITS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6)
CUT = st.one_of(st.just(1.0), st.floats(0, 1))


def damage(data: bytes, hits: list[tuple[float, int]], cut: float) -> bytes:
    spoiled = bytearray(data)
    for place, value in hits:
        spoiled[int(place * len(spoiled))] = value
    return bytes(spoiled[: int(cut * len(spoiled))])


@pytest.fixture(scope="module")
def state_bytes(tmp_path_factory, artifact_path):
    path = tmp_path_factory.mktemp("state") / "state"
    with open_session(artifact_path, num_threads=1) as session:
        adapter = eager(session, preset("shift"))
        rng = np.random.default_rng(0)
        for _ in range(4):
            adapter.step([rng.integers(0, 256, (20, 20, 3), np.uint8)])
        adapter.save_state(path)
    return path.read_bytes()


@FEW
@given(hits=HITS, cut=CUT)
def test_a_damaged_state_is_refused_or_the_same(make_adapter, tmp_path, state_bytes, hits, cut):
    path = tmp_path / "state"
    path.write_bytes(damage(state_bytes, hits, cut))
    adapter = make_adapter()
    try:
        adapter.load_state(path)
    except GainError:
        assert adapter.frames == 0
    probs = adapter.step([np.full((20, 20, 3), 90, np.uint8)]).probs
    assert np.isfinite(probs).all()


@FEW
@given(hits=HITS, cut=CUT)
def test_a_damaged_artifact_is_refused_or_loads(artifact_path, tmp_path, hits, cut):
    path = tmp_path / "tiny.onnx"
    path.write_bytes(damage(artifact_path.read_bytes(), hits, cut))
    for read in (load_onnx, load_artifact):
        try:
            loaded = read(path)
        except GainError:
            return
    manifest = loaded.manifest
    assert loaded.head_weight.shape == (manifest.num_classes, manifest.feature_dim)


def test_an_element_type_that_is_none_is_refused(artifact_path, tmp_path):
    """Found by damage: ONNX has no name for most numbers that a byte can hold."""
    path = tmp_path / "tiny.gain.onnx"
    model = onnx.load(artifact_path)
    model.graph.output[0].type.tensor_type.elem_type = 29
    onnx.save(model, path)
    with pytest.raises(ArtifactError, match="expected float32, got type 29; export the model"):
        load_artifact(path)


@FEW
@given(hits=HITS, cut=CUT)
def test_a_damaged_adaptive_file_is_refused_or_loads(
    artifact_path, tmp_path_factory, tmp_path, hits, cut
):
    whole = tmp_path_factory.getbasetemp() / "whole.adaptive.onnx"
    if not whole.exists():
        add_adaptation(artifact_path, whole, config=preset("shift"))
    path = tmp_path / "tiny.adaptive.onnx"
    path.write_bytes(damage(whole.read_bytes(), hits, cut))
    with suppress(GainError):
        load_adaptive(path)


@FEW
@given(
    st.dictionaries(
        st.sampled_from(["gain.schema", "gain.labels", "gain.head", "gain.preprocess"]), st.text()
    )
)
def test_strange_metadata_is_refused_or_loads(artifact_path, tmp_path, entries):
    model = onnx.load(artifact_path)
    for item in model.metadata_props:
        if item.key in entries:
            item.value = entries[item.key]
    path = tmp_path / "tiny.onnx"
    path.write_bytes(model.SerializeToString())
    with suppress(GainError):
        load_artifact(path)


@pytest.mark.parametrize("name", ["features", "pixel_values", "gain.schema"])
def test_a_name_that_is_no_text_is_refused(artifact_path, tmp_path, name):
    """Protobuf hands such a name over as bytes."""
    path = tmp_path / "tiny.onnx"
    path.write_bytes(artifact_path.read_bytes().replace(name.encode(), b"\xff" + name.encode()[1:]))
    for read in (load_artifact, load_onnx, load_adaptive):
        with pytest.raises(ArtifactError, match=r"expected names and metadata in UTF-8, got b'"):
            read(path)


SCHEMES = ["", "rtsp://", "http://", "https://", "test://", "v4l2://", "csi://", "file://", "x://"]


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(SCHEMES), st.text(max_size=40))
def test_any_uri_is_parsed_or_refused(scheme, rest):
    try:
        uri = parse_uri(scheme + rest)
    except ConfigError:
        return
    assert uri.target or uri.kind == "test"


SAFE = string.ascii_letters + string.digits


@settings(max_examples=300, deadline=None)
@given(
    scheme=st.sampled_from(["rtsp", "rtsps", "http", "https"]),
    tail=st.text(alphabet=SAFE + "/?#:@!$&=% ", max_size=12),
    template=st.sampled_from(
        [
            "{scheme}://joe:{secret}@host/1",
            "{scheme}://joe:{secret}@host:554/1?x=1",
            "{scheme}://host/1?password={secret}",
            "rtspsrc location={scheme}://joe:{secret}@host/1 ! decodebin ! appsink",
            'rtspsrc location="{scheme}://joe:{secret}@host/1" latency=0 ! appsink',
        ]
    ),
)
def test_no_password_is_shown(scheme, tail, template):
    in_query = "password={secret}" in template
    secret = "S3CRET" + ("" if in_query else tail)
    uri = template.format(scheme=scheme, secret=secret)
    shown = [redact(uri), json.dumps(StreamConfig(input=uri, model="m.onnx").to_dict())]
    try:
        shown.append(parse_uri(uri).shown)
    except ConfigError as err:
        shown.append(str(err))
    assert not any("S3CRET" in text for text in shown)
