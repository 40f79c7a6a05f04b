"""`configs/endpoints.toml`: short names for models behind endpoints."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from whet.clients.endpoints import find_endpoint, read_endpoints
from whet.errors import ConfigError
from whet.system.env_files import find_key

ROOT = Path(__file__).parents[2]
ONE = '[[endpoint]]\nendpoint_id = "mini"\nmodel = "m"\nurl = "http://a/v1"\nkey = "A_KEY"\n'


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "endpoints.toml"
        path.write_text(text)
        return path

    return write


def test_a_short_name_stands_for_a_model_and_how_to_reach_it(file):
    more = 'api_client_type = "anthropic_messages"\nheaders = {X-Team = "t"}\nprice = {input = 1, output = 2}\n'
    found = find_endpoint("mini", file(ONE + more + "max_concurrent = 4\ntimeout = 9\nmax_retries = 1\n"))
    assert found.model == "m"
    config = found.client
    assert (config.api_base_url, config.api_key_var, config.client_type) == (
        "http://a/v1",
        "A_KEY",
        "anthropic_messages",
    )
    assert (config.extra_headers, config.price.output) == ({"X-Team": "t"}, 2.0)
    assert (config.max_concurrent, config.timeout, config.max_retries) == (4, 9.0, 1)


def test_the_names_of_verifiers_0_1_are_understood(file):
    text = ONE.replace("url", "api_base_url").replace("key", "api_key_var") + 'type = "openai_responses"\n'
    config = find_endpoint("mini", file(text)).client
    assert (config.api_base_url, config.api_key_var, config.client_type) == ("http://a/v1", "A_KEY", "openai_responses")


def test_a_setting_under_both_of_its_names_counts_once(file):
    assert find_endpoint("mini", file(ONE + 'api_base_url = "http://a/v1"\n')).client.api_base_url == "http://a/v1"
    with pytest.raises(ConfigError, match="api_base_url"):
        read_endpoints(file(ONE + 'api_base_url = "http://b/v1"\n'))


def test_repeated_names_are_replicas(file):
    config = find_endpoint("mini", file(ONE + ONE.replace("http://a", "http://b"))).client
    assert [one.api_base_url for one in config.spread()] == ["http://a/v1", "http://b/v1"]


def test_replicas_serve_one_model(file):
    with pytest.raises(ConfigError, match="replicas of 'mini' differ in model: 'm' and 'other'"):
        read_endpoints(file(ONE + ONE.replace('"m"', '"other"')))


def test_an_unknown_name_is_none(file):
    path = file(ONE)
    assert find_endpoint("minni", path) is None


def test_without_a_file_at_the_default_place_there_are_no_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_endpoint("mini") is None


def test_a_file_that_was_asked_for_has_to_be_there(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        find_endpoint("mini", tmp_path / "mine.toml")


def test_a_key_written_into_the_file_is_refused_and_not_shown(file):
    with pytest.raises(ConfigError, match="should name the environment variable") as caught:
        read_endpoints(file(ONE.replace("A_KEY", "sk-very-secret")))
    assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('modle = "m"\n', r"unknown key 'endpoint\.0\.modle'.*Did you mean 'endpoint\.0\.model'"),
        ('api_client_type = "openai"\n', "api_client_type"),
        ("price = {input = 1}\n", "price.output"),
        ("timeout = 0\n", "timeout"),
    ],
)
def test_a_mistake_names_file_and_key(file, line, words):
    with pytest.raises(ConfigError, match=words) as caught:
        read_endpoints(file(ONE + line))
    assert "endpoints.toml" in str(caught.value)


def test_the_file_that_comes_with_whet_is_right():
    assert {"local", "mini", "haiku"} <= set(read_endpoints(ROOT / "configs" / "endpoints.toml"))


def test_a_key_comes_from_the_environment_first(monkeypatch):
    monkeypatch.setenv("WHET_TEST_KEY", "sesame")
    assert find_key("WHET_TEST_KEY") == "sesame"


def test_a_key_comes_from_the_keyring_otherwise(monkeypatch):
    keyring, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    errors.KeyringError = RuntimeError
    keyring.errors = errors
    keyring.get_password = lambda service, name: {("whet", "WHET_TEST_KEY"): "open"}.get((service, name))
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    assert find_key("WHET_TEST_KEY") == "open"
    assert find_key("WHET_OTHER_KEY") is None


def test_a_keyring_that_cannot_be_read_has_no_key(monkeypatch):
    keyring, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    errors.KeyringError = RuntimeError

    def refuse(service, name):
        raise RuntimeError("no backend")

    keyring.errors, keyring.get_password = errors, refuse
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    assert find_key("WHET_TEST_KEY") is None
