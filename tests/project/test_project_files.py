"""The project's own files agree with each other: README with Makefile, constraints with what is installed."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def constrained() -> dict[str, str]:
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    return {plain(name): version for name, version in pairs}


def test_constraints_pin_exact_versions_once_and_no_build() -> None:
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)] == []
    assert len(constrained()) == len(lines)


def test_every_dependency_of_the_project_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for extra, more in project["optional-dependencies"].items():
        lines += (
            more if extra not in ("docs", "benchmark", "inspect", "rg", "ta", "vllm") else []
        )  # made on request, not by set-up
    pins = constrained()
    for requirement in map(Requirement, lines):
        if requirement.name != "whet":
            assert requirement.specifier.contains(pins[plain(requirement.name)]), requirement


def requirements_of(name: str, extras: frozenset[str]) -> set[tuple[str, frozenset[str]]]:
    """What one installed package needs here, with the extras that it asks of them."""
    found = set()
    for line in importlib.metadata.requires(name) or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in (extras or {""})):
            found.add((plain(requirement.name), frozenset(requirement.extras)))
    return found


def test_everything_that_whet_brings_with_it_is_pinned() -> None:
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = {("whet", frozenset({"", "all", "train", "openai", "math", "dev"}))}
    while waiting:
        package = waiting.pop()
        seen.add(package)
        waiting |= requirements_of(*package) - seen
    # A CUDA build of torch pins its own libraries.
    names = {name for name, _ in seen if not re.match(r"nvidia-|cuda-|triton", name)} - {"whet"}
    assert sorted(names - set(constrained())) == []


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def documents() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_make_command_in_a_document_exists(document: Path) -> None:
    named = re.findall(r"(?:^|`)make ([a-z]+)", document.read_text(), re.MULTILINE)
    assert set(named) <= targets()


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_between_documents_leads_somewhere(document: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", document.read_text())  # code may have brackets that are no links
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text)
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    assert "\nmake test\n" in (ROOT / "README.md").read_text()
    assert re.search(r"^limit \d+ make test ", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_the_version_is_the_same_everywhere() -> None:
    import whet

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == whet.__version__
    assert re.search(
        rf"^## \[({re.escape(whet.__version__)}|Unreleased)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )


@pytest.mark.parametrize(("script", "page"), [("config_reference", "config.md"), ("http_reference", "http.md")])
def test_generated_pages_are_up_to_date(script: str, page: str) -> None:
    if page == "http.md":
        pytest.importorskip("fastapi")
    spec = importlib.util.spec_from_file_location(script, ROOT / "scripts" / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / page).read_text() == module.reference(), f"run: python scripts/{script}.py"


def test_every_decision_is_in_the_list_of_decisions() -> None:
    design = ROOT / "docs" / "design"
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (design / "index.md").read_text()))
    assert listed == {path.name for path in design.glob("*.md")} - {"index.md"}


def test_no_todo_marks_and_no_home_directories() -> None:
    put_off = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + rf"X)\b|{re.escape(str(Path.home()))}/")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".jinja"} and path.is_file():
            found += [f"{name}: {match.group()}" for match in put_off.finditer(path.read_text(encoding="utf-8"))]
    # Dockerfiles mean the home of their images' root.
    of_images = re.compile(r"\w+/(whet/)?integrations/(test_)?harbor_\w+\.py: /\w+/")
    assert [one for one in found if not of_images.fullmatch(one)] == []


def literal_text(node: ast.expr) -> str:
    """What a string, or an f-string with its values as `{}`, says."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)


def test_errors_of_several_sentences_in_training_end_with_a_full_stop() -> None:
    wrong = []
    for path in sorted((ROOT / "src" / "whet" / "rl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error"):
                for text in map(literal_text, node.args):
                    if re.search(r"[\w)\]'}]\. [A-Z]", text) and not text.endswith((".", "?", "}")):
                        wrong.append(f"{path.name}: {text}")
    assert wrong == []


def test_the_architecture_page_lists_the_rooms_in_the_order_of_imports_and_files_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = [one for one in config["tool"]["importlinter"]["contracts"] if one["id"] == "rooms"]
    layers = [set(re.split(r" [|:] ", layer)) for layer in contract["layers"] if not layer.startswith("(")]
    rooms = [set(re.split(r" \| ", line.split("  ")[0])) for line in page.split("```")[1].strip().splitlines()]
    vocabulary = set().union(*(set(re.split(r", ", name)) for name in rooms.pop()))
    assert rooms == layers[: len(rooms)]
    assert vocabulary == set().union(*layers[len(rooms) :])
    named = re.findall(r"^([a-z_]+/[a-z_/]+\.py) ", page, re.MULTILINE)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / "src" / "whet" / name).is_file()] == []


def test_every_source_file_that_a_design_page_names_exists():
    """`room/file.py`, from any folder on. Guides name files that their reader writes, so they are left out."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md", *(ROOT / "docs" / "design").glob("*.md")]
    named = {name for page in pages for name in re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)+\.py)`", page.read_text())}
    assert len(named) > 20
    assert sorted(name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in tracked)) == []


def test_what_contributing_names_to_add_one_more_of_a_kind_exists() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## One more of a kind\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`((?:src|tests|docs)/[\w./]+)`", table))
    assert len(named) > 10
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_the_architecture_page_names_the_folders_of_the_rooms() -> None:
    """Parts of `rl` have a map of their own, those of `cli` are its commands'."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders: dict[str, set[str]] = {}
    for room, folder in re.findall(r"^src/whet/(\w+)/(\w+)/", tracked, re.MULTILINE):
        if room not in ("rl", "cli"):
            folders.setdefault(room, set()).add(folder)
    block = (ROOT / "docs" / "architecture.md").read_text().split("Folders of a room")[1].split("```")[1]
    rows = (line.split("/", 1) for line in block.strip().splitlines())
    assert {room: set(re.split(r", ", names.strip())) for room, names in rows} == folders
