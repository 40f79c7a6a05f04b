"""`describe`: what `whet model show` says of models whose configs have other keys."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.inference.plain import small_models

from whet.models.local_models import describe


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("gpt2", {"hidden_size": 32, "layers": 2, "heads": 4, "context": 256}),
        ("gpt_neo", {"hidden_size": 32, "layers": 2, "heads": 4, "context": 256}),
        ("bloom", {"hidden_size": 32, "layers": 2, "heads": 4, "context": None}),  # states no context
        ("granite", {"hidden_size": 32, "layers": 2, "heads": "4 query, 2 key/value", "context": 256}),
    ],
)
def test_sizes_of_families_with_other_keys(kind: str, expected: dict[str, Any], tmp_path: Path) -> None:
    small_models.write(kind, tmp_path)
    description = describe(tmp_path)
    assert {key: description[key] for key in expected} == expected


def test_sizes_of_a_text_model_inside_a_larger_config(tmp_path: Path) -> None:
    small_models.write("granite", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "with_images", "text_config": config}))
    assert (describe(tmp_path)["layers"], describe(tmp_path)["vocabulary"]) == (2, 512)
