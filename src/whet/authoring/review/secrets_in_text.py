"""Keys and passwords in a package's files, by the shapes that providers give them. Pure.

Shapes are those in the providers' own documentation. What is found is never shown, only where. A file may be made to
slow the search down: no pattern begins with an unbounded repeat, so that time grows linearly with length.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a private key", re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")),
    ("an AWS access key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("an Anthropic key", re.compile(r"\bsk-ant-[A-Za-z0-9_-]{20,}")),
    ("an OpenAI key", re.compile(r"\bsk-(?!ant-)(?:proj-|svcacct-)?[A-Za-z0-9_-]{20,}")),
    ("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")),
    ("a GitHub token", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})\b")),
    ("a GitLab token", re.compile(r"\bglpat-[A-Za-z0-9_-]{20,}")),
    ("a Google key", re.compile(r"\bAIza[0-9A-Za-z_-]{35}\b")),
    ("a Slack token", re.compile(r"\bxox[abeoprs]-[0-9A-Za-z-]{10,}")),
    ("a PyPI token", re.compile(r"\bpypi-[A-Za-z0-9_-]{50,}")),
    ("a W&B key", re.compile(r"(?i)wandb[\w.]{0,40}\s{0,9}[=:]\s{0,9}[\"'][0-9a-f]{40}[\"']")),
    ("a password in an address", re.compile(r"\b[a-z][a-z0-9+.-]{0,20}://[^\s:/@\"'{}<>$]+:[^\s:/@\"'{}<>$]{6,}@")),
)
ASSIGNED = re.compile(
    r"(?i)(?:api[_-]?key|secret|passw(?:or)?d|access[_-]?token|auth[_-]?token)[\"']?\s{0,9}[=:]\s{0,9}"
    r"[\"']([^\"'\s{}<>$]{16,})[\"']"
)
KEY_FILES = re.compile(
    r"(?:\.env(?:\.(?!example|sample|template)\w+)?|secrets\.env|id_(?:rsa|dsa|ecdsa|ed25519)|.+\.(?:pem|p12|pfx|key))"
)
SHORTEST = 13  # of all that is found: an address with a password
RANDOM_BITS = 3.5  # per character; words of a language have less


def secrets_in(name: str, text: str) -> Iterator[tuple[str, str]]:
    """(where, what) for everything in a file that looks like a secret."""
    if KEY_FILES.fullmatch(PurePosixPath(name).name):
        yield name, "a file that is made to hold keys"
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) < SHORTEST:
            continue
        found = next((what for what, shape in SHAPES if shape.search(line)), None)
        if found is None:
            assigned = ASSIGNED.search(line)
            if assigned is not None and bits_per_character(assigned.group(1)) > RANDOM_BITS:
                found = "a key or a password"
        if found is not None:
            yield f"{name}:{number}", found


def bits_per_character(text: str) -> float:
    """The entropy of a text's characters."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
