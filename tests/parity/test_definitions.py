"""The same definitions with the same scripted model under `verifiers` 0.1.14 and under whet: the same of everything.

Environments are compared by field: what the model was shown, rewards, metrics, messages, stop conditions, turns,
states, advantages, rows and metadata as returned and as they lie on disk. Functions (parsers, schemas of tools,
messages) get the same values. Packages written against reasoning-gym, textarena and Gym are loaded by their ids,
unmodified; textarena's word games load word lists that NLTK downloads, so the games here are one that needs none and
one with a list of its own.

A test is named by what its definition says. A difference is a failure, unless it is one of those that
docs/design/environments.md numbers. All is in one file because each library is imported once, which takes seconds.
"""

import json
from pathlib import Path

import pytest
from differences import ENVIRONMENTS, FUNCTIONS, PACKAGES
from public_names import public_names
from sides import VENV, Comparison, absent, names_of, observe, require

NAMES = names_of("single_turn", "multi_turn", "failures", "tools", "groups", "scoring", "results")
PACKAGE_NAMES = names_of("packages")

pytestmark = pytest.mark.parts


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """What each library did, by subject and definition."""
    require("verifiers")
    both = ["environments", "functions", *([] if absent("games") else ["packages"])]
    own = [] if absent("games") else ["own_games"]
    return observe(tmp_path_factory.mktemp("parity"), {"verifiers": both, "whet": [*own, *both]})


def comparison(observed, subject, expected):
    return Comparison(observed["verifiers"][subject], observed["whet"][subject], expected)


@pytest.fixture(scope="module")
def environments(observed):
    return comparison(observed, "environments", ENVIRONMENTS)


@pytest.fixture(scope="module")
def functions(observed):
    return comparison(observed, "functions", FUNCTIONS)


@pytest.fixture(scope="module")
def packages(observed):
    require("games")
    return comparison(observed, "packages", PACKAGES)


@pytest.fixture(scope="module")
def seen(observed):
    require("games")
    return observed["whet"]["own_games"]


class TestEnvironments:
    @pytest.mark.parametrize("definition", NAMES)
    def test_both_do_the_same(self, environments, definition):
        assert environments.unexpected[definition] == {}

    def test_every_definition_was_run(self, environments):
        assert set(environments.peer) == set(environments.own) == set(NAMES)

    def test_every_expected_difference_shows(self, environments):
        assert [entry for entry in ENVIRONMENTS if entry not in environments.used] == []


def unexpected(compared, beginning):
    """Differences of the functions whose names begin so; there have to be such functions."""
    names = [name for name in compared.peer if name.startswith(beginning)]
    assert names
    return {name: compared.unexpected[name] for name in names if compared.unexpected[name]}


class TestFunctions:
    @pytest.mark.parametrize(
        "parser", ["Parser", "ThinkParser", "MaybeThinkParser", "XMLParser", "fields of an XMLParser"]
    )
    def test_parsers_read_and_reward_all_texts_alike(self, functions, parser):
        assert unexpected(functions, parser) == {}

    def test_boxed_answers_and_those_after_hashes_are_found_alike(self, functions):
        assert unexpected(functions, "answers are extracted") == {}

    def test_tools_are_described_alike(self, functions):
        assert unexpected(functions, "the schema of") == {}

    def test_messages_are_read_and_changed_alike(self, functions):
        assert unexpected(functions, "messages") == {}

    def test_states_errors_decorators_and_synchronous_forms_are_alike(self, functions):
        assert unexpected(functions, "a state") == {}
        assert unexpected(functions, "errors") == {}
        assert unexpected(functions, "marks") == {}
        assert unexpected(functions, "a synchronous evaluation") == {}

    def test_helpers_of_utils_do_alike(self, functions):
        assert unexpected(functions, "helpers") == {}

    def test_nothing_was_left_out(self, functions):
        assert set(functions.peer) == set(functions.own)
        assert {name: found for name, found in functions.unexpected.items() if found} == {}

    def test_every_expected_difference_shows(self, functions):
        assert [entry for entry in FUNCTIONS if entry not in functions.used] == []


class TestPackages:
    @pytest.mark.parametrize("definition", PACKAGE_NAMES)
    def test_both_do_the_same(self, packages, definition):
        assert packages.unexpected[definition] == {}

    @pytest.mark.parametrize("definition", PACKAGE_NAMES)
    def test_it_runs_and_its_solver_is_rewarded(self, packages, definition):
        rows = packages.own[definition]["rows"]
        assert all(row.get("error") is None for row in rows)
        assert max(row["reward"] for row in rows) > 0

    def test_every_definition_was_run(self, packages):
        assert set(packages.peer) == set(packages.own) == set(PACKAGE_NAMES)

    def test_every_expected_difference_shows(self, packages):
        assert [entry for entry in PACKAGES if entry not in packages.used] == []


class TestGames:
    """What whet's integrations do beyond those of 0.1.14, where reasoning-gym and textarena are installed."""

    def test_a_game_without_words_is_dealt_by_the_seed_of_its_row(self, seen):
        found = seen["game_by_seed"]
        assert found["seeds"] == [[5, 6, 7], [8, 9, 10, 11]]
        assert found["errors"] == [None] * 8
        assert found["rewards"] == [1.0] * 8
        assert found["turns"][::2] == found["turns"][1::2]  # the same deal takes as long each time
        assert len(set(found["turns"])) > 1

    def test_the_reward_of_the_game_counts_where_no_rubric_is_given(self, seen):
        first_guesses, lost = seen["game_without_rubric"]
        assert sorted(first_guesses) == [0.0] * 19 + [1.0]
        assert lost == [0.0]

    def test_a_game_of_two_players_is_refused(self, seen):
        assert "textarena makes no game 'TicTacToe-v0' of one player" in seen["game_of_two_players"]

    def test_a_word_game_whose_words_cannot_be_had_says_how_to_get_them(self, seen):
        assert "python -m nltk.downloader words" in seen["word_game_without_words"]

    def test_games_and_tasks_that_there_are_not_are_named(self, seen):
        assert "textarena makes no game 'Wurdle-v0'" in seen["no_such_game"]
        assert ["reasoning-gym makes no tasks of" in message for message in seen["no_such_tasks"]] == [True, True]

    def test_a_misspelt_argument_suggests_the_right_one(self, seen):
        assert "Did you mean 'num_train_examples'?" in seen["misspelt_argument"]

    def test_tasks_are_made_when_they_are_first_asked_for(self, seen):
        assert seen["tasks_are_made_on_first_use"] == [True, False]


def test_reasoning_gym_counts_turns_in_code_that_imports_whet(seen):
    assert [metrics["num_turns"] for metrics in seen["turns_of_tasks"]] == [1.0, 1.0]


def test_the_list_of_public_names_is_that_of_the_wheel():
    require("verifiers")
    (package,) = (VENV / "lib").glob("python3.*/site-packages/verifiers")
    listed = json.loads(Path(__file__).with_name("verifiers-0.1.14.json").read_text())
    assert public_names(package) == listed
