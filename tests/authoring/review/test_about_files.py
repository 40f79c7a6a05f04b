"""What is said of a package's files and rows, none of which is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from whet.authoring.review.about_files import (
    brought_by,
    imported,
    review_imports,
    review_package,
    review_secrets,
    undescribed,
)
from whet.authoring.review.package import files_of, read_package
from whet.authoring.review.row_facts import compare, most_common_answer, split_facts, spread_out
from whet.envs.loading import locate

Write = Callable[..., Path]


def found(folder: Path) -> list[str]:
    return [finding.code for finding in review_package(read_package(locate(str(folder))))]


def test_a_package_with_everything_has_no_findings(write_package: Write) -> None:
    assert found(write_package()) == []


def test_what_is_missing_is_told(write_package: Write) -> None:
    folder = write_package(project='[project]\nname = "{name}"\n')
    (folder / "README.md").unlink()
    (folder / "tests" / "test_sums.py").unlink()
    assert found(folder) == ["metadata", "no-licence", "no-readme", "no-tests", "no-eval-default"]


def test_a_licence_may_be_a_file_and_an_eval_default_that_of_verifiers(write_package: Write) -> None:
    project = """
        [project]
        name = "{name}"
        version = "1"
        description = "d"

        [tool.verifiers.eval]
        num_examples = 3
    """
    assert found(write_package(project=project, more={"LICENSE.txt": "MIT"})) == []


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("[tool.whet.eval]\nnum_exmaples = 3", "num_exmaples"),
        ("[tool.whet.check]\nignore = {{ nonsense = 'x' }}", "no code 'nonsense'"),
        ("[tool.whet.check]\nignore = {{ duplicates = ' ' }}", "needs a reason"),
        ("[tool.whet.check]\nreward_range = [1, 0]", "lowest reward comes first"),
        ("[tool.whet.chekc]", "no table 'chekc'"),
        ("= nonsense", "cannot be read"),
    ],
)
def test_a_mistake_in_the_tables_of_whet_is_an_error(table: str, words: str, write_package: Write) -> None:
    project = f"[project]\nname = '{{name}}'\nversion = '1'\ndescription = 'd'\nlicense = 'MIT'\n{table}\n"
    findings = list(review_package(read_package(locate(str(write_package(project=project))))))
    assert findings[0].code == "pyproject"
    assert words in findings[0].message


def test_another_name_than_the_modules_is_told(write_package: Write) -> None:
    folder = write_package(
        "sums", project='[project]\nname = "other"\nversion = "1"\ndescription = "d"\nlicense = "MIT"\n'
    )
    assert "'other' and its module 'sums'" in next(review_package(read_package(locate(str(folder))))).message


def test_an_installed_package_is_known_by_its_metadata() -> None:
    package = read_package(locate("calculator"))
    assert (package.name, package.licensed, package.has_tests) == ("calculator", True, True)
    library = read_package(locate("tomli-w"))
    assert (library.installed, bool(library.version)) == (True, True)


def test_an_argument_that_the_readme_does_not_name_is_told(write_package: Write) -> None:
    package = read_package(locate(str(write_package())))
    assert undescribed(package, ["num_train", "seed"]) == ["seed"]


# Put together here, so that no scanner takes this file for a leak.
SECRETS = {
    "an AWS access key": "AKIA" + "IOSFODNN7EXAMPLE",
    "an OpenAI key": "sk-" + "proj-abcdefghij0123456789",
    "an Anthropic key": "sk-ant-" + "api03-abcdefghij0123456789",
    "a Hugging Face token": "hf_" + "a1B2c3D4e5" * 4,
    "a GitHub token": "ghp_" + "a1B2c3D4e5" * 4,
    "a private key": "-----BEGIN " + "RSA PRIVATE KEY-----",
    "a password in an address": "postgres://me:" + "hunter22@db.example/x",
    "a key or a password": "API_KEY = '" + "q9XzP2vK7mW4tR8s'",
}


@pytest.mark.parametrize("what", SECRETS)
def test_a_secret_is_found_where_it_is_and_not_repeated(what: str) -> None:
    (finding,) = review_secrets({"settings.py": f"x = 1\n{SECRETS[what]}\n"})
    assert (finding.where, what in finding.message) == ("settings.py:2", True)
    assert SECRETS[what] not in finding.message + finding.fix


@pytest.mark.parametrize(
    "text",
    [
        "api_key = os.environ['OPENAI_API_KEY']",
        "token = 'aaaaaaaaaaaaaaaaaaaaaaaa'",
        "task-sk-learn",
        "https://a.b/c:d@e",
    ],
)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    assert list(review_secrets({"a.py": text})) == []


@pytest.mark.parametrize(
    ("name", "count"), [(".env", 1), ("sub/id_rsa", 1), ("cert.pem", 1), (".env.example", 0), ("env", 0)]
)
def test_files_that_are_made_to_hold_keys_are_found(name: str, count: int) -> None:
    assert len(list(review_secrets({name: ""}))) == count


def test_links_out_of_the_package_are_not_read(write_package: Write, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("-----BEGIN " + "PRIVATE KEY-----")
    folder = write_package()
    (folder / "inside.txt").symlink_to(tmp_path / "outside.txt")
    assert "inside.txt" not in files_of(read_package(locate(str(folder))))[0]


def test_an_import_that_no_dependency_brings_is_found(write_package: Write) -> None:
    folder = write_package(before="import numpy\nfrom pydantic import BaseModel\nimport json\n")
    package = read_package(locate(str(folder)))
    owners = {"numpy": ["numpy"], "pydantic": ["pydantic"]}
    (finding,) = review_imports(package, files_of(package)[0], lambda: owners, brought_by(package))
    assert (finding.where, finding.code) == ("sums.py:1", "undeclared-dependency")


def test_optional_imports_and_those_for_type_checkers_need_no_dependency() -> None:
    optional = "try:\n    import a\nexcept ImportError: pass\nif TYPE_CHECKING:\n    import b\n"
    assert imported(f"{optional}def f():\n    import c.d\nfrom . import e\n") == [("c", 7)]


def task(question: str, answer: str = "", **more: object) -> dict[str, object]:
    return {"prompt": [{"role": "user", "content": question}], "answer": answer, **more}


def test_a_task_is_its_prompt_and_its_answer_whatever_spaces_and_case() -> None:
    both = compare([task("What is  1?", "1"), task("Same", "a")], [task("what is 1?", "1"), task("Same", "b")])
    assert (both["overlap"], both["overlapping"]) == (1, "what is 1?")
    assert (both["shared_prompts"], both["prompts_are_tasks"]) == (1, True)


def test_in_a_game_the_prompt_says_nothing_about_the_task() -> None:
    both = compare([task("Guess.", str(n)) for n in range(4)], [task("Guess.", str(n)) for n in range(4, 6)])
    assert (both["overlap"], both["prompts_are_tasks"]) == (0, False)
    hidden = compare([task("Guess.", info={"n": 1})], [task("Guess.", info={"n": 1})])
    assert hidden["overlap"] == 1


def test_types_that_json_has_not_and_repeated_rows_are_told() -> None:
    facts = split_facts([task("a", info={"when": {1, 2}}), {**task("b"), "answer": 3}, task("b", "3")], 0.0)
    assert facts.type_problems == ["'info' has set under 'when', which JSON cannot hold", "'answer' is int, not text"]
    assert (facts.duplicates, facts.duplicate) == (1, "b")


def test_the_most_common_answer_is_one_that_comes_twice() -> None:
    assert most_common_answer([task("a", "x"), task("b", "y"), task("c", "y")]) == "y"
    assert most_common_answer([task("a", "x"), task("b", "y")]) == ""


def test_tasks_to_try_are_taken_from_all_over_the_split() -> None:
    assert spread_out(list(range(10)), 5) == [0, 2, 4, 6, 8]  # type: ignore[arg-type]
    assert spread_out([1, 2], 5) == [1, 2]  # type: ignore[arg-type]


def test_a_package_with_too_many_files_is_not_read_to_its_end_and_says_so(write_package: Write) -> None:
    folder = write_package(more={f"data/{number}.txt": "" for number in range(2001)})
    files, all_read = files_of(read_package(locate(str(folder))))
    assert (len(files), all_read) == (2000, False)


def test_tables_of_other_types_are_no_crash(write_package: Write) -> None:
    project = "tool = 3\n[project]\nname = 1\ndependencies = 'whet'\ndynamic = 2\n"
    assert "metadata" in found(write_package(project=project))


def test_rows_with_values_of_any_kind_can_be_told_apart() -> None:
    itself: dict[str, object] = {}
    itself["again"] = itself
    odd = [task("a", info={1: 2, "b": object()}), task("b", info=itself)]
    assert split_facts(odd, 0.0).rows == 2
    assert split_facts([odd[0]], 0.0).digest == split_facts([task("a", info={1: 2, "b": object()})], 0.0).digest
