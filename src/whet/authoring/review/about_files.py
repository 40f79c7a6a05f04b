"""What a reviewer says of a package's files: metadata, README, tests, imports, secrets.

The files are a stranger's: reading them may take without end, or end the process. So `read_files` runs in the process
that will run the package's code, before any of that runs and within its limits (`isolation.py`). The rest is pure.

Secrets are found by the shapes in the providers' own documentation. What is found is never shown, only where. A file
may be made to slow the search down: no pattern begins with an unbounded repeat, so time grows linearly with length.
"""

from __future__ import annotations

import ast
import importlib.metadata
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from whet.authoring.review.findings import Finding
from whet.authoring.review.observations import Found, Read
from whet.authoring.review.package import Package, files_of, read_package
from whet.config import StrictModel
from whet.envs.loading import locate

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
MOST = 1000  # findings that are reported
TEXT = 1000  # characters of a finding or a reason


def read_files(environment: str, emit: Callable[[StrictModel], None]) -> None:
    """Report the findings, then the package's own settings for a review."""
    package = read_package(locate(environment))
    files, all_read = files_of(package)
    reported = 0
    for review in (
        review_package(package),
        review_secrets(files),
        review_imports(package, files, cache(_owners), brought_by(package)),
    ):
        for finding in review:
            if reported < MOST:
                emit(_found(finding))
                reported += 1
    if not all_read:
        emit(_found(Finding.of("unread-files", f"only {len(files)} files were searched for secrets and imports")))
    ignored = {code: reason[:TEXT] for code, reason in package.settings.ignore.items()}
    emit(Read(settings=package.settings.model_copy(update={"ignore": ignored})))


def brought_by(package: Package) -> set[str]:
    """The distributions that a package's requirements bring, as far as they are installed here."""
    pairs: set[tuple[str, str]] = set()
    waiting = [(line, "") for line in package.requirements]
    while waiting:
        line, extra = waiting.pop()
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = "whet" if canonicalize_name(requirement.name) == "verifiers" else canonicalize_name(requirement.name)
        if name == "whet":
            pairs.add(("verifiers", ""))
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in pairs:
                pairs.add((name, wanted))
                waiting += [(more, wanted) for more in _requires(name)]
    return {name for name, _ in pairs}


def review_package(package: Package) -> Iterator[Finding]:
    """Metadata, README, tests, evaluation default."""
    file = "pyproject.toml"
    if package.problem is not None:
        yield Finding.of("pyproject", package.problem, where=file)
    if package.name is None and package.folder is None:
        yield Finding.of(
            "no-package",
            "there is no pyproject.toml next to the module, so it cannot be installed",
            where=str(package.path),
        )
        return
    missing = [
        word
        for word, value in (
            ("name", package.name),
            ("version", package.version),
            ("description", package.description),
        )
        if not value
    ]
    if missing and package.problem is None:
        yield Finding.of("metadata", f"[project] has no {', '.join(missing)}", where=file)
    if package.name and canonicalize_name(package.name).replace("-", "_") != package.module:
        yield Finding.of(
            "metadata",
            f"the package is '{package.name}' and its module '{package.module}', so that it is not found by its name "
            "once it is installed",
            "Give both the same name, with underscores for the module's dashes.",
            where=file,
        )
    if not package.licensed:
        yield Finding.of("no-licence", "the package has no licence", where=file)
    if not package.readme:
        yield Finding.of("no-readme", "there is no README")
    if package.installed:
        return
    if not package.has_tests:
        yield Finding.of("no-tests", "there are no tests")
    if not package.eval_default and package.problem is None:
        yield Finding.of("no-eval-default", "nothing says how to evaluate it", where=file)


def undescribed(package: Package, arguments: Iterable[str]) -> list[str]:
    """The arguments of `load_environment` that its README, if it has one, does not name."""
    text = package.readme
    return [name for name in arguments if text and not re.search(rf"\b{re.escape(name)}\b", text)]


def review_secrets(files: Mapping[str, str]) -> Iterator[Finding]:
    """Keys and passwords."""
    for name, text in files.items():
        for where, what in secrets_in(name, text):
            yield Finding.of("secret", f"this looks like {what}", where=where)


def review_imports(
    package: Package,
    files: Mapping[str, str],
    owners: Callable[[], Mapping[str, list[str]]],
    brought: Collection[str],
) -> Iterator[Finding]:
    """Packages that are imported and not declared.

    `owners` maps a module to its distributions. It is called only where names are not enough: it reads the
    records of all that is installed. `brought` names the distributions that the package's requirements bring. An import
    inside `try` is taken for an optional one.
    """
    if package.name is None:
        return
    own = {package.module, *(name.partition("/")[0].removesuffix(".py") for name in files)}
    known = {*sys.stdlib_module_names, *own}
    for name, text in files.items():
        if not name.endswith(".py") or "test" in name:
            continue
        for module, line in imported(text):
            if module in known or canonicalize_name(module) in brought:
                continue
            possible = {canonicalize_name(owner) for owner in owners().get(module, [module])}
            if not possible & set(brought):
                yield Finding.of(
                    "undeclared-dependency",
                    f"'{module}' is imported, and no dependency brings it",
                    f"Add {min(possible, default=module)} to dependencies in pyproject.toml.",
                    where=f"{name}:{line}",
                )


def imported(text: str) -> list[tuple[str, int]]:
    """(top-level module, line) of each import that is not inside `try` or TYPE_CHECKING, the first of each."""
    try:
        return _imported(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last is what the parser says of deep nesting
        return []


def _imported(text: str) -> list[tuple[str, int]]:
    tree = ast.parse(text)
    imported: dict[str, int] = {}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                imported.setdefault(alias.name.partition(".")[0], node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            imported.setdefault(node.module.partition(".")[0], node.lineno)
        elif not isinstance(node, ast.Try) and not _for_type_checkers(node):
            waiting.extend(ast.iter_child_nodes(node))
    return sorted(imported.items(), key=lambda item: item[1])


def _for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def secrets_in(name: str, text: str) -> Iterator[tuple[str, str]]:
    """(where, what) for everything in a file that looks like a secret."""
    if KEY_FILES.fullmatch(PurePosixPath(name).name):
        yield name, "a file that is made to hold keys"
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) < SHORTEST:
            continue
        kind = next((what for what, shape in SHAPES if shape.search(line)), None)
        if kind is None:
            assigned = ASSIGNED.search(line)
            if assigned is not None and bits_per_character(assigned.group(1)) > RANDOM_BITS:
                kind = "a key or a password"
        if kind is not None:
            yield f"{name}:{number}", kind


def bits_per_character(text: str) -> float:
    """The entropy of a text's characters."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


def _found(finding: Finding) -> Found:
    where, message, fix = (text[:TEXT] for text in (finding.where, finding.message, finding.fix))
    return Found(code=finding.code, where=where, message=message, fix=fix)


def _owners() -> dict[str, list[str]]:
    """The distributions that each top-level module is of."""
    return {name: list(of) for name, of in importlib.metadata.packages_distributions().items()}


def _requires(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
