"""What a reviewer says of a package's files. Pure: the package as data in, findings out."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from whet.authoring.review.findings import Finding
from whet.authoring.review.package import Package
from whet.authoring.review.secrets_in_text import secrets_in


def review_package(package: Package) -> Iterator[Finding]:
    """Metadata, README, tests, evaluation default."""
    file = "pyproject.toml"
    if package.problem is not None:
        yield Finding.of("pyproject", file, package.problem, "Mend it.")
    if package.name is None and package.folder is None:
        yield Finding.of(
            "no-package",
            str(package.path),
            "there is no pyproject.toml next to the module, so it cannot be installed",
            "Begin with `whet env init` and move the module there.",
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
        yield Finding.of("metadata", file, f"[project] has no {', '.join(missing)}", "Add it.")
    if package.name and canonical(package.name).replace("-", "_") != package.module:
        yield Finding.of(
            "metadata",
            file,
            f"the package is '{package.name}' and its module '{package.module}', so that it is not found by its name "
            "once it is installed",
            "Give both the same name, with underscores for the module's dashes.",
        )
    if not package.licensed:
        yield Finding.of("no-licence", file, "the package has no licence", 'Add license = "..." to [project].')
    if not package.readme:
        yield Finding.of(
            "no-readme", "", "there is no README", "Say what the task, the arguments and the reward are, in README.md."
        )
    if package.installed:
        return
    if not package.has_tests:
        yield Finding.of(
            "no-tests", "", "there are no tests", "Test that right answers earn and others do not, in tests/test_*.py."
        )
    if not package.eval_default and package.problem is None:
        yield Finding.of(
            "no-eval-default",
            file,
            "nothing says how to evaluate it",
            "Add [tool.whet.eval] with num_examples and rollouts_per_example.",
        )


def undescribed(package: Package, arguments: Iterable[str]) -> list[str]:
    """The arguments of `load_environment` that its README, if it has one, does not name."""
    text = package.readme
    return [name for name in arguments if text and not re.search(rf"\b{re.escape(name)}\b", text)]


def review_secrets(files: Mapping[str, str]) -> Iterator[Finding]:
    """Keys and passwords."""
    for name, text in files.items():
        for where, what in secrets_in(name, text):
            yield Finding.of(
                "secret",
                where,
                f"this looks like {what}",
                "Take it out, revoke it, and read it from an environment variable (whet.ensure_keys).",
            )


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
            if module in known or canonical(module) in brought:
                continue
            possible = {canonical(owner) for owner in owners().get(module, [module])}
            if not possible & set(brought):
                yield Finding.of(
                    "undeclared-dependency",
                    f"{name}:{line}",
                    f"'{module}' is imported, and no dependency brings it",
                    f"Add {min(possible, default=module)} to dependencies in pyproject.toml.",
                )


def imported(text: str) -> list[tuple[str, int]]:
    """(top-level module, line) of each import that is not inside `try` or TYPE_CHECKING, the first of each."""
    try:
        return _imported(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last is what the parser says of deep nesting
        return []


def _imported(text: str) -> list[tuple[str, int]]:
    tree = ast.parse(text)
    found: dict[str, int] = {}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.setdefault(alias.name.partition(".")[0], node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.setdefault(node.module.partition(".")[0], node.lineno)
        elif not isinstance(node, ast.Try) and not _for_type_checkers(node):
            waiting.extend(ast.iter_child_nodes(node))
    return sorted(found.items(), key=lambda item: item[1])


def _for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def canonical(name: str) -> str:
    """A distribution's name in its one normal spelling."""
    return re.sub(r"[-_.]+", "-", name).lower()
