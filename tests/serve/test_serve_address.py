"""Where it is served, and the token file."""

import pytest

from gain_apps.serve import ServeAddress
from gain_apps.serve.address import read_token, token_from_secrets
from gain_core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port", "url"),
    [
        pytest.param("8080", "127.0.0.1", 8080, "http://127.0.0.1:8080/", id="port alone"),
        pytest.param("0.0.0.0:80", "0.0.0.0", 80, "http://0.0.0.0:80/", id="all of IPv4"),
        pytest.param("[::1]:9", "::1", 9, "http://[::1]:9/", id="IPv6"),
        pytest.param("camera.local:0", "camera.local", 0, "http://camera.local:0/", id="name"),
    ],
)
def test_address_is_parsed(text, host, port, url):
    address = ServeAddress.parse(text)
    assert (address.host, address.port, address.url) == (host, port, url)


@pytest.mark.parametrize(
    "text", ["", "host", ":80", "a:b", "1.2.3.4:65536", "::1:80", "[::1]", "u@h:80", "h:8 ", "٣"]
)
def test_bad_address_is_one_clear_line(text):
    with pytest.raises(ConfigError, match=r"--serve: expected \[HOST:\]PORT") as caught:
        ServeAddress.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_token_is_read_without_white_space_and_others_who_may_read_it_are_said(
    tmp_path, caplog, mode
):
    path = tmp_path / "token"
    path.write_text("  0123456789abcdef\n")
    path.chmod(mode)
    assert read_token(path) == "0123456789abcdef"
    assert ("chmod 600" in caplog.text) == (mode == 0o644)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"short", id="short"),
        pytest.param(b"", id="empty"),
        pytest.param(b"0123456789 abcdefgh", id="two words"),
        pytest.param("0123456789abcdefé".encode(), id="not ASCII"),
        pytest.param(b"x" * 100_000, id="long"),
    ],
)
def test_bad_token_is_refused_without_being_shown(tmp_path, content):
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="printable ASCII") as caught:
        read_token(path)
    assert "0123456789" not in str(caught.value)
    assert "xxx" not in str(caught.value)


def test_the_token_comes_from_where_secrets_are_handed_over(tmp_path, monkeypatch):
    assert token_from_secrets() is None
    monkeypatch.setenv("GAIN_SERVE_TOKEN", "from-the-environment-01")
    assert token_from_secrets() == "from-the-environment-01"
    (tmp_path / "serve-token").write_text("from-systemd-0123456789\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert token_from_secrets() == "from-systemd-0123456789"
    (tmp_path / "serve-token").write_text("short\n")
    with pytest.raises(ConfigError, match="serve-token: expected one line"):
        token_from_secrets()
