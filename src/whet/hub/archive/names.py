"""Names: owners, environments, versions, and the names of entries in an archive.

Everything is ASCII, so no two names look alike and none differs only by its Unicode form.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator

from packaging.version import InvalidVersion, Version

from whet.envs.identity.ids import LOWER_CASE, MAX_NAME, MAX_OWNER, MAX_VERSION
from whet.errors import ConfigError
from whet.hub.archive.problems import Problem, shown

MAX_ENTRY = 200
_ENTRY = re.compile(r"[A-Za-z0-9 !#$%&'()+,\-./;=@\[\]^_`{}~]+")
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{n}{i}" for n in ("com", "lpt") for i in range(1, 10))})


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


OWNERS_RESERVED = _words(
    "about account admin administrator all api audit device docs environments events favicon files health help hub",
    "index install login logout me metrics new null organisations organizations owners pages privacy public root",
    "search settings simple static status support system tokens undefined users verifiers whet",
)

_PACKAGES = _words(
    "accelerate alembic anthropic anyio attrs bubblewrap certifi click cryptography datasets dateutil dotenv fastapi",
    "fsspec gepa gguf h11 hatchling httpcore httptools httpx httpx2 huggingface_hub hypothesis idna importlib_metadata",
    "jinja2 jsonschema markdown markdown_it markupsafe math_verify mcp mypy nh3 nltk numpy openai orjson packaging",
    "pandas peft pil pillow pip pkg_resources platformdirs pluggy prime prime_rl prometheus_client psutil psycopg",
    "pyarrow pydantic pydantic_core pygments pytest pytest_timeout pytest_xdist python_multipart reasoning_gym regex",
    "renderers requests rich ruff safetensors scipy setuptools six sitecustomize sqlalchemy starlette sympy test tests",
    "textarena textual tiktoken tokenizers tomli tomli_w torch tqdm trackio transformers triton trl typer",
    "typing_extensions urllib3 usercustomize uv uvicorn uvloop verifiers virtualenv vllm wandb wheel whet xxhash yaml",
)
_STANDARD_OTHERWISE = _words(
    "aifc annotationlib asynchat asyncore audioop cgi cgitb chunk compression crypt distutils imghdr imp lib2to3",
    "mailcap msilib nis nntplib ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib uu xdrlib",
)
"""Modules of the standard library of older and newer Pythons."""

MODULES_RESERVED = frozenset(
    name.lower() for name in (*sys.stdlib_module_names, *_STANDARD_OTHERWISE, *_PACKAGES) if not name.startswith("__")
)
"""Modules that no environment may be called, since it would be imported in place of them."""


def module_of(name: str) -> str:
    """The one top-level module that an environment has."""
    return name.replace("-", "_")


def check_owner_name(name: str) -> str:
    """`name`, where it may be a user or an organisation. Raises `ConfigError`."""
    _check_form(name, "an owner", MAX_OWNER)
    if name in OWNERS_RESERVED:
        raise ConfigError(f"the owner name '{name}' is reserved. Choose another.")
    return name


def check_environment_name(name: str) -> str:
    """`name`, where it may be an environment. Raises `ConfigError`."""
    _check_form(name, "an environment", MAX_NAME)
    if name[0].isdigit():
        raise ConfigError(f"'{name}' is no name for an environment: its module {module_of(name)} cannot be imported.")
    if module_of(name) in MODULES_RESERVED:
        raise ConfigError(
            f"the environment name '{name}' is reserved: its module {module_of(name)} would hide another one. "
            "Choose another."
        )
    return name


def _check_form(name: str, what: str, most: int) -> None:
    if not LOWER_CASE.fullmatch(name) or len(name) > most:
        raise ConfigError(
            f"'{shown(name)}' is no name for {what}: use a-z, 0-9 and single '-' inside, at most {most} characters."
        )


def check_version(version: str) -> str:
    """`version`, where it is one in its normal form. Raises `ConfigError`."""
    try:
        parsed = Version(version) if len(version) <= MAX_VERSION and version.isascii() else None
    except InvalidVersion:
        parsed = None
    if parsed is None:
        raise ConfigError(
            f"'{shown(version)}' is no version: use PEP 440, such as 1.2.0, at most {MAX_VERSION} characters."
        )
    if parsed.local is not None:
        raise ConfigError(f"the version {version} has a local part. Leave out +{parsed.local}.")
    if str(parsed) != version:
        raise ConfigError(f"the version '{version}' is not in its normal form. Write {parsed}.")
    return version


def entry_problems(names: Iterable[str]) -> Iterator[Problem]:
    """What is wrong with the names of an archive's entries, by themselves and together. A folder ends with '/'."""
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    for name in names:
        problem = _entry_problem(name)
        if problem is not None:
            yield Problem(shown(name), *problem)
            continue
        key = name.rstrip("/").lower()
        if key in seen:
            same = seen[key] == name
            what = "it is there twice" if same else f"it differs from {seen[key]} only by case or kind"
            yield Problem(name, "duplicate", what)
            continue
        seen[key] = name
        parts = name.rstrip("/").split("/")
        for depth in range(1, len(parts) + (1 if name.endswith("/") else 0)):
            folder = "/".join(parts[:depth])
            other = folders.setdefault(folder.lower(), folder)
            if other != folder:
                yield Problem(name, "duplicate", f"its folder differs from {other} only by case")
                break
    for key in seen.keys() & folders.keys():
        if not seen[key].endswith("/"):
            yield Problem(seen[key], "duplicate", "it is a file and a folder")


def _entry_problem(name: str) -> tuple[str, str] | None:
    """The code and reason to refuse one name."""
    if len(name) > MAX_ENTRY:
        return "long-name", f"the name has {len(name)} characters; at most {MAX_ENTRY} are allowed"
    if not name or not name.isascii() or not name.isprintable():
        return "odd-name", "the name has characters that are not printable ASCII"
    if "\\" in name or ":" in name or not _ENTRY.fullmatch(name):
        return "odd-name", "the name has a backslash, a colon or another character that some systems do not allow"
    if name.startswith("/"):
        return "absolute", "the name is an absolute path"
    parts = name.removesuffix("/").split("/")
    if ".." in parts:
        return "outside", "the name leads out of the archive with '..'"
    if any(part in ("", ".") for part in parts):
        return "odd-name", "the name has an empty or '.' segment"
    if any(part[-1] in ". " or part[0] == " " for part in parts):
        return "odd-name", "a segment of the name ends with a dot or a space, or begins with a space"
    if any(part.partition(".")[0].lower() in _DEVICES for part in parts):
        return "odd-name", "the name is one of a device on some systems"
    return None
