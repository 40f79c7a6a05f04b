"""One rollout as a few lines in a box."""

from __future__ import annotations

import io

from rich.console import Console

from whet.display.picture import sample_panel


def test_a_long_prompt_is_cut_in_its_middle_and_an_answer_at_its_end() -> None:
    prompt = [{"role": "user", "content": "Do it. " + "x" * 200 + " What is 2 + 3?"}]
    answer = [{"role": "assistant", "content": "It is 5, " + "y" * 200}]
    file = io.StringIO()
    Console(file=file, width=60).print(sample_panel({"prompt": prompt, "completion": answer}, "a title", 60, 8))
    user, model = file.getvalue().splitlines()[1:3]
    assert "Do it. xx" in user
    assert "x What is 2 + 3?" in user
    assert "It is 5, yy" in model
    assert model.rstrip(" │").endswith("y…")


def test_a_long_conversation_shows_its_beginning_and_its_end() -> None:
    said = [{"role": "assistant", "content": f"answer {number}"} for number in range(20)]
    file = io.StringIO()
    Console(file=file, width=60).print(sample_panel({"prompt": "go", "completion": said}, "a title", 60, 4))
    lines = [line.strip(" │") for line in file.getvalue().splitlines()[1:-1]]
    assert lines == ["prompt   go", "model    answer 0", "... 18 more", "model    answer 19"]
