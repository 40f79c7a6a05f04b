"""Secrets in settings are not written down."""

import json
from pathlib import Path

import pytest

from whet.rollouts.row_log import write_rows
from whet.system.files import LineFile, json_line
from whet.system.redaction import KNOWN, MARK, Redactor, redacted, redacted_keys


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


ODD = 'p"a\\ss wört\n' + "second line of the key"


@pytest.mark.parametrize(
    "text", [ODD, json.dumps({"args": ODD}), "?q=p%22a%5Css%20w%C3%B6rt%0Asecond%20line%20of%20the%20key"]
)
def test_a_secret_is_found_plain_as_json_and_in_an_address(text: str) -> None:
    found = Redactor({"ODD": ODD}).text(text)
    assert "[ODD]" in found
    assert not any(part in found for part in ("ss wört", "ss%20w", "ss w\\u00f6rt", "second"))


def test_lines_of_json_stay_json_and_numbers_stay(tmp_path: Path) -> None:
    KNOWN.add({"PIN": "123456", "ODD": ODD})
    row = {"ids": [123456, 1], "text": f"the pin is 123456, {ODD}", "123456": float("nan"), "call": json.dumps([ODD])}
    expected = {"ids": [123456, 1], "text": "the pin is [PIN], [ODD]", "[PIN]": None, "call": '["[ODD]"]'}
    assert json.loads(json_line(row)) == json.loads(json_line(row, ascii=False)) == expected
    log = LineFile(tmp_path / "rows.jsonl")
    log.append([row])
    assert json.loads(log.path.read_text()) == expected
    assert row["text"] == f"the pin is 123456, {ODD}"


@pytest.mark.parametrize(("where", "kept"), [("prompt", False), ("completion", False), ("error", True)])
def test_tokens_of_a_secret_are_not_written_either(where: str, kept: bool, tmp_path: Path) -> None:
    KNOWN.add({"KEY": "sk-canary-1"})
    row = {"prompt": "p", "completion": "c", "error": None, "turns": [{"prompt_ids": [1, 2]}, None]}
    row[where] = {"text": "it is sk-canary-1"}
    written = json.loads(write_rows(tmp_path / "rows.jsonl", [row]).read_text())
    assert written[where] == {"text": "it is [KEY]"}
    assert written["turns"] == ([{"prompt_ids": [1, 2]}, None] if kept else [None, None])


def test_known_secrets_are_no_part_of_settings() -> None:
    KNOWN.add({"KEY": "sk-canary-1"})
    settings = redacted({"env_args": {"harmless": "use sk-canary-1"}})
    assert settings == {"env_args": {"harmless": f"use {MARK}"}}
    assert [*redacted_keys(settings)] == ["env_args.harmless"]
