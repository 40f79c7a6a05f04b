"""Which hub and which token a command uses, and where they are kept."""

from __future__ import annotations

import json

import pytest

from whet.errors import ConfigError
from whet.hub.client import settings


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("https://hub.example.com", "https://hub.example.com"),
        ("https://Hub.Example.com/", "https://hub.example.com"),
        ("hub.example.com/team/", "https://hub.example.com/team"),
        ("http://127.0.0.1:8090", "http://127.0.0.1:8090"),
        ("http://[::1]:8090", "http://[::1]:8090"),
    ],
)
def test_an_address_has_one_spelling(given: str, normal: str) -> None:
    assert settings.normal_url(given) == normal


@pytest.mark.parametrize(
    "given",
    ["ftp://hub", "https://", "https://a:b@hub", "https://hub?x=1", "https://hub#x", "https://hub:port", "http://["],
)
def test_no_address_of_a_hub_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="address of a hub"):
        settings.normal_url(given)


def test_without_a_hub_the_error_says_how_to_get_one() -> None:
    with pytest.raises(ConfigError, match="whet login --hub URL"):
        settings.hub_url()


def test_tokens_are_kept_by_hub_in_a_file_that_others_cannot_read() -> None:
    settings.save_token("https://one", "first")
    settings.save_token("https://two", "second")
    assert (settings.token_for("https://one"), settings.token_for("https://two")) == ("first", "second")
    assert settings.tokens_file().stat().st_mode & 0o777 == 0o600
    assert settings.forget_token("https://one")
    assert not settings.forget_token("https://one")
    assert (settings.token_for("https://one"), settings.token_for("https://two")) == (None, "second")


def test_a_token_of_the_environment_goes_to_the_hub_that_is_set_and_to_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WHET_HUB_TOKEN", "secret")
    assert settings.token_for("https://hub.example.com") is None
    monkeypatch.setenv("WHET_HUB", "https://hub.example.com/")
    assert settings.hub_url() == "https://hub.example.com"
    assert settings.token_for("https://hub.example.com") == "secret"
    assert settings.token_for("https://other.example.com") is None


@pytest.mark.parametrize("content", ["", "[]", '{"https://one": 3}', "\x00"])
def test_a_damaged_file_of_tokens_is_one_clear_error(content: str) -> None:
    settings.save_token("https://one", "first")
    settings.tokens_file().write_text(content)
    with pytest.raises(ConfigError, match="whet login"):
        settings.token_for("https://one")


def test_an_unknown_key_of_the_settings_is_an_error() -> None:
    settings.write_settings(settings.HubSettings(hub="https://one", owner="ann"))
    assert settings.read_settings().owner == "ann"
    settings.settings_file().write_text('hubb = "https://one"\n')
    with pytest.raises(ConfigError, match="hubb"):
        settings.read_settings()


def test_only_plain_http_to_other_machines_is_sent_in_clear() -> None:
    clear = ["http://hub.example.com", "http://10.0.0.1:8090"]
    safe = ["https://hub.example.com", "http://127.0.0.1:8090", "http://localhost", "http://[::1]:1"]
    assert [url for url in clear + safe if settings.sends_in_clear(url)] == clear


def test_saved_tokens_name_no_user_or_password() -> None:
    settings.save_token("https://one", "first")
    assert json.loads(settings.tokens_file().read_text()) == {"https://one": {"token": "first"}}
