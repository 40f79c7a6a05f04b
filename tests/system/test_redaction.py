"""Secrets in settings are not written down."""

import pytest

from whet.system.redaction import MARK, redacted, redacted_keys


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:pass@host/v1", f"https://{MARK}@host/v1"),
        ("https://token@host:8000", f"https://{MARK}@host:8000"),
        ("https://host/v1?api_key=abc&model=m", f"https://host/v1?api_key={MARK}&model=m"),
        ("https://host/v1?model=m&X-Access-Token=a%20b#top", f"https://host/v1?model=m&X-Access-Token={MARK}#top"),
        ("no answer from http://a:b@c/d?key=e.", f"no answer from http://{MARK}@c/d?key={MARK}"),
        ("http://a:b@c,http://d:e@f", f"http://{MARK}@c,http://{MARK}@f"),
        ("https://host/v1?monkey=1&max_tokens=5", "https://host/v1?monkey=1&max_tokens=5"),
        ("https://host/@user", "https://host/@user"),
        ("write to a@b.example: key=value?", "write to a@b.example: key=value?"),
    ],
)
def test_secrets_of_addresses(text, expected):
    assert redacted(text) == expected
    assert redacted(expected) == expected


def test_secrets_of_headers_and_of_arguments_by_name():
    given = {
        "sampling_args": {"extra_headers": {"X-Team": "evals"}, "max_tokens": 5, "stop": ["key"]},
        "env_args": {"judge_api_key": "a", "judge_api_key_var": "JUDGE", "eos_token": "</s>", "password": "", "n": [1]},
        "urls": ("http://a:b@c",),
        "authorization": "Bearer a",
    }
    assert redacted(given) == {
        "sampling_args": {"extra_headers": {"X-Team": MARK}, "max_tokens": 5, "stop": ["key"]},
        "env_args": {
            "judge_api_key": MARK,
            "judge_api_key_var": "JUDGE",
            "eos_token": "</s>",
            "password": "",
            "n": [1],
        },
        "urls": [f"http://{MARK}@c"],
        "authorization": MARK,
    }
    assert [*redacted_keys(redacted(given))] == [
        "sampling_args.extra_headers.X-Team", "env_args.judge_api_key", "urls.0", "authorization",
    ]  # fmt: skip
