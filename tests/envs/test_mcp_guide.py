"""The MCP part of docs/guides/tools.md does what it says when its files are typed in and its commands run."""

import os
import re
import sys
from pathlib import Path

import pytest

import whet

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "tools.md"
GUIDE = PAGE.read_text().partition("## Tools of an MCP server")[2]


@pytest.fixture
def typed(tmp_path):
    """A directory with the files of the guide."""
    files = re.findall(r"into `(\w+\.py)`:\n\n```python\n(.*?)```", GUIDE, re.DOTALL)
    assert [name for name, _ in files] == ["library_server.py", "library_env.py", "try_library.py"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_guides_environment_is_found_by_its_path(typed, monkeypatch):
    monkeypatch.chdir(typed)
    env = whet.load_environment("./library_env.py")
    assert len(env.get_dataset()) == len(env.get_eval_dataset()) == 1


def test_the_guide_names_every_key_of_a_server_and_every_limit():
    from whet.envs.mcp_env import MCPServerConfig

    keys = set(MCPServerConfig.model_fields) - {"description"}
    table = GUIDE.partition("### What a server's dict takes")[2].partition("A misspelt key")[0]
    assert set(re.findall(r"`(\w+)`", table)) - {"True"} == keys


@pytest.mark.parametrize("block", re.findall(r"```python\n(servers = .*?)```", GUIDE, re.DOTALL))
def test_the_guides_servers_make_sense(block):
    names = {"sys": sys, "SERVER": Path(os.devnull)}
    exec(block, names)
    whet.MCPEnv(mcp_servers=names["servers"], dataset=[{"question": "q"}])
