"""The grammar of source URIs and the removal of credentials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from gain_core.errors import ConfigError
from gain_runtime.sources.uri import parse_uri, record_from_params, redact, redact_to_host


@pytest.mark.parametrize(
    ("text", "kind", "target"),
    [
        pytest.param("0", "camera", "0", id="index"),
        pytest.param(" 02 ", "camera", "2", id="index-with-blanks"),
        pytest.param("/dev/video0", "camera", "/dev/video0", id="device"),
        pytest.param("v4l2:///dev/video1", "camera", "/dev/video1", id="v4l2"),
        pytest.param("rtsp://cam/1", "network", "rtsp://cam/1", id="rtsp"),
        pytest.param("RTSP://cam:554/1", "network", "RTSP://cam:554/1", id="upper-case"),
        pytest.param("https://h/a.mp4", "network", "https://h/a.mp4", id="https"),
        pytest.param("clip.mp4", "path", "clip.mp4", id="file"),
        pytest.param("./0", "path", "./0", id="file-named-like-an-index"),
        pytest.param("file:///tmp/a%20b.mp4", "path", "/tmp/a b.mp4", id="file-uri"),
        pytest.param(r"C:\clips\a.mp4", "path", r"C:\clips\a.mp4", id="windows-drive"),
        pytest.param("photos/*.jpg", "glob", "photos/*.jpg", id="glob"),
        pytest.param("/dev/shm/*.jpg", "glob", "/dev/shm/*.jpg", id="glob-on-memory-disk"),
        pytest.param("/dev/shm/no/a.mp4", "path", "/dev/shm/no/a.mp4", id="file-on-memory-disk"),
        pytest.param("/dev/v4l/by-id/x", "camera", "/dev/v4l/by-id/x", id="unplugged"),
        pytest.param("photos/**/n0?_[ab].png", "glob", "photos/**/n0?_[ab].png", id="glob-all"),
        pytest.param("test://pattern", "test", "pattern", id="test"),
        pytest.param("-", "pipe", "-", id="stdin"),
        pytest.param("a ! appsink", "pipeline", "a ! appsink", id="pipeline"),
    ],
)
def test_kinds_and_targets(text, kind, target):
    parsed = parse_uri(text)
    assert (parsed.kind, parsed.target) == (kind, target)


@pytest.mark.parametrize("name", ["clip [720p].mp4", "a ! b.mp4"])
def test_a_path_that_exists_is_no_glob_and_no_pipeline(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path(name).touch()
    assert parse_uri(name).kind == "path"


def test_test_parameters_are_parsed_and_unescaped():
    parsed = parse_uri("test://drive?seed=3&conditions=fog%2Cnight&empty=")
    assert parsed.target == "drive"
    assert parsed.params == {"seed": "3", "conditions": "fog,night", "empty": ""}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("", "empty", id="empty"),
        pytest.param("ftp://host/a.mp4", "ftp://", id="unknown-scheme"),
        pytest.param("rtsp://", "HOST", id="no-host"),
        pytest.param("http://host:port/x", "port", id="bad-port"),
        pytest.param("v4l2://video0", "three slashes", id="v4l2-two-slashes"),
        pytest.param("test://a?x=1&x=2", "x given more than once", id="repeated"),
        pytest.param("test://a?x", "key=value", id="no-value"),
        pytest.param("csi://", "csi://NUMBER", id="no-sensor"),
        pytest.param("csi://zero", "csi://NUMBER", id="sensor"),
        pytest.param("csi://0?width=0", "width: expected 1 to 16384", id="csi-width"),
        pytest.param("csi://0?flip=9", "flip: expected 0 to 7", id="csi-flip"),
        pytest.param("csi://0?depth=8", "unknown parameter depth", id="csi-parameter"),
        pytest.param("videotestsrc ! autovideosink", "ends in appsink", id="pipeline"),
        pytest.param("clip\0.mp4", "NUL", id="nul"),
        pytest.param("sftp://joe:hunter2@host/a", "rtsp://", id="lists-the-known-ones"),
    ],
)
def test_malformed_uris_are_one_clear_line(text, named):
    with pytest.raises(ConfigError) as caught:
        parse_uri(text)
    assert named in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        pytest.param("rtsp://joe:secret@cam/1", "rtsp://***@cam/1", id="user-and-password"),
        pytest.param("rtsp://secret@cam/1", "rtsp://***@cam/1", id="user-only"),
        pytest.param("rtsp://joe:se@cret@cam/1", "rtsp://***@cam/1", id="at-sign"),
        pytest.param("rtsp://joe:se/cret@cam/1", "rtsp://***", id="slash"),
        pytest.param("rtsp://joe:se?cret#x@cam/1", "rtsp://***", id="question-mark"),
        pytest.param("http://c/v?pwd=secret&size=2", "http://c/v?size=2&***", id="query"),
        pytest.param("http://c/v?access_token=secret", "http://c/v?***", id="token"),
        pytest.param("http://c/v?p%61ssword=secret", "http://c/v?***", id="escaped-key"),
        pytest.param("http://c/v?secret", "http://c/v?***", id="bare"),
        pytest.param("http://c/v?channel=a%26b", "http://c/v?***", id="odd-value"),
        pytest.param("http://c/v?mail=a@secret", "http://***", id="at-sign-in-query"),
        pytest.param("http://c/v#secret", "http://c/v#***", id="fragment"),
        pytest.param("rtsp://c/user=a_password=secret_channel=1", "rtsp://c/***", id="in-path"),
        pytest.param("rtsp://c/Streaming/101", "rtsp://c/Streaming/101", id="words"),
        pytest.param("http://c/x/T0A1B2C3D/clip", "http://c/x/***/clip", id="token-in-path"),
        pytest.param("rtsp://c/joe/secret/ch1/main", "rtsp://c/***/***/ch1/main", id="bare-word"),
        # As some recorders make them: letters alone, nothing but the stream's password.
        pytest.param("rtsps://c/kLxnTqsecretVvdX", "rtsps://c/***", id="letters"),
        pytest.param("rtsp://c/12345678/1", "rtsp://c/***/1", id="digits"),
        pytest.param("rtsp://c/h264Preview_01", "rtsp://c/h264Preview_01", id="camera-words"),
        pytest.param("rtsp://c/axis-media/media.amp", "rtsp://c/axis-media/media.amp", id="axis"),
        pytest.param("rtsp://c/unicast/c1/s0/live", "rtsp://c/unicast/c1/s0/live", id="letter"),
        pytest.param(
            "rtspsrc location='rtsp://a:secret@c/1' user-pw=secret latency=0 "
            "! video/x-raw,width=(int)64 ! appsink",
            "rtspsrc location=rtsp://***@c/1 *** latency=0 ! video/x-raw,width=(int)64 ! appsink",
            id="pipeline",
        ),
        pytest.param(
            "rtspsrc location=rtsp://c/1 user-id = joe user-pw= secret ! appsink",
            "rtspsrc location=rtsp://c/1 *** *** ! appsink",
            id="pipeline-with-spaces",
        ),
        pytest.param(
            'souphttpsrc location=http://c/1 user-pw="S3 secret" other = (string)secret ! appsink',
            "souphttpsrc location=http://c/1 *** *** ! appsink",
            id="pipeline-with-quotes-and-types",
        ),
        pytest.param("http://cam/v?fps=3", "http://cam/v?fps=3", id="nothing-to-hide"),
        pytest.param("a@b.mp4", "a@b.mp4", id="path"),
        pytest.param("test://drive?seed=1", "test://drive?seed=1", id="test"),
    ],
)
def test_redaction(uri, expected):
    assert "secret" not in expected
    assert redact(uri) == expected
    assert "secret" not in redact(uri)


@dataclass(frozen=True)
class _Params:
    count: int = 1
    speed: float = 2.0
    loop: bool = False
    name: str = "x"


def test_parameters_take_the_types_of_their_defaults():
    params = {"count": "7", "speed": "0.5", "loop": "yes", "name": "3"}
    record = record_from_params(_Params, params, owner="test://a")
    assert record == _Params(count=7, speed=0.5, loop=True, name="3")
    assert record_from_params(_Params, {}, owner="test://a") == _Params()


@pytest.mark.parametrize(
    ("params", "named"),
    [
        pytest.param({"colour": "1"}, "unknown parameter colour", id="unknown"),
        pytest.param({"count": "1.5"}, "count: expected int", id="int"),
        pytest.param({"speed": "fast"}, "speed: expected float", id="float"),
        pytest.param({"loop": "2"}, "loop: expected bool", id="bool"),
    ],
)
def test_bad_parameters_are_named(params, named):
    with pytest.raises(ConfigError, match=named):
        record_from_params(_Params, params, owner="test://a")


def test_a_csi_camera_is_a_pipeline_of_its_size():
    uri = parse_uri("csi://1?width=1920&height=1080&rate=60&flip=2")
    assert (uri.kind, uri.shown) == ("pipeline", "csi://1")
    assert uri.target.startswith("nvarguscamerasrc sensor-id=1 ! ")
    assert "width=(int)1920, height=(int)1080, framerate=(fraction)60/1" in uri.target
    assert "flip-method=2" in uri.target
    assert uri.target.endswith("appsink drop=true max-buffers=1 sync=false")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://hooks.example.com/services/T00/B00/XXSECRET", "https://hooks.example.com"),
        ("https://u:p@example.com:8443/x?y=z", "https://***@example.com:8443"),
        ("https://example.com?token=x", "https://example.com"),
    ],
)
def test_a_webhook_is_shown_by_its_host_alone(url, expected):
    assert redact_to_host(url) == expected
