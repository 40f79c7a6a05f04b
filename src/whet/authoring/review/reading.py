"""What a review says of a package's files, read in the process that will run its code and before any of that runs.

The files are those of a stranger: reading them may take without end, or end the process. So it happens within the
limits of that process (`isolation.py`) rather than in the one that the user waits for.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from functools import cache

from packaging.requirements import InvalidRequirement, Requirement

from whet.authoring.review.about_files import canonical, review_imports, review_package, review_secrets
from whet.authoring.review.findings import Finding
from whet.authoring.review.observations import Found, Read
from whet.authoring.review.package import Package, files_of, read_package
from whet.config import StrictModel
from whet.envs.loading import locate

MOST = 1000  # findings that are reported
TEXT = 1000  # characters of a finding or a reason


def read_files(environment: str, emit: Callable[[StrictModel], None]) -> None:
    """Report the findings, then the package's own settings for a review."""
    package = read_package(locate(environment))
    files, all_read = files_of(package)
    told = 0
    for review in (
        review_package(package),
        review_secrets(files),
        review_imports(package, files, cache(_owners), brought_by(package)),
    ):
        for finding in review:
            if told < MOST:
                emit(_found(finding))
                told += 1
    if not all_read:
        emit(_found(Finding.of("unread-files", "", f"only {len(files)} files were searched for secrets and imports")))
    ignored = {code: reason[:TEXT] for code, reason in package.settings.ignore.items()}
    emit(Read(settings=package.settings.model_copy(update={"ignore": ignored})))


def brought_by(package: Package) -> set[str]:
    """The distributions that a package's requirements bring, as far as they are installed here."""
    found: set[tuple[str, str]] = set()
    waiting = [(line, "") for line in package.requirements]
    while waiting:
        line, extra = waiting.pop()
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = "whet" if canonical(requirement.name) == "verifiers" else canonical(requirement.name)
        if name == "whet":
            found.add(("verifiers", ""))
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in found:
                found.add((name, wanted))
                waiting += [(more, wanted) for more in _requires(name)]
    return {name for name, _ in found}


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
