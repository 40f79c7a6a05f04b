"""`ClientConfig` and the endpoints it spreads over."""

import pytest
from pydantic import ValidationError

from whet.clients.config import ClientConfig, EndpointConfig

URLS = ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"]


def test_an_endpoint_has_what_it_does_not_set_from_the_config():
    config = ClientConfig(
        api_key_var="OWN_KEY",
        timeout=7,
        endpoint_configs=[
            {"api_base_url": URLS[0]},
            EndpointConfig(api_base_url=URLS[1], api_key_var="OTHER_KEY", extra_headers={"X-A": "b"}),
        ],
    )
    first, second = config.spread()
    assert (first.api_base_url, first.api_key_var, first.timeout, first.extra_headers) == (URLS[0], "OWN_KEY", 7, {})
    assert (second.api_base_url, second.api_key_var, second.timeout) == (URLS[1], "OTHER_KEY", 7)
    assert second.extra_headers == {"X-A": "b"}
    assert first.endpoint_configs == second.endpoint_configs == []


def test_an_entry_may_be_a_whole_config_without_entries_of_its_own():
    whole = ClientConfig(client_type="openai_completions", api_base_url=URLS[0], timeout=3)
    config = ClientConfig(endpoint_configs=[whole, {"api_base_url": URLS[1], "endpoint_configs": []}])
    assert [(one.api_base_url, one.timeout, one.client_type) for one in config.spread()] == [
        (URLS[0], 3, "openai_chat_completions"),
        (URLS[1], 3600, "openai_chat_completions"),
    ]
    with pytest.raises(ValidationError, match="cannot include endpoint_configs"):
        ClientConfig(endpoint_configs=[ClientConfig(endpoint_configs=[{"api_base_url": URLS[0]}])])
    with pytest.raises(ValidationError, match="api_base_ulr"):
        ClientConfig(endpoint_configs=[{"api_base_ulr": URLS[0]}])
