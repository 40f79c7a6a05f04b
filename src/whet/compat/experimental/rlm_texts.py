"""What `RLMEnv` says to the model, and the code that it puts into the sandbox."""

from __future__ import annotations

import json
import shlex
from typing import Any

from whet.parsing import parse_json

ANSWER_BYTES = 1 << 20
# A module for Python, and a command for the shell by the name of each function. Imports nothing that is not Python's.
CLIENT = """#!/usr/bin/env python3
import json, os, sys, urllib.request
settings = json.loads(SETTINGS)
def call(name, args, kwargs):
    said = json.dumps({"tool": name, "args": args, "kwargs": kwargs})
    body = json.dumps({"model": "function", "messages": [{"role": "user", "content": said}]}).encode()
    request = urllib.request.Request(settings["url"], body, {"Content-Type": "application/json"})
    opened = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request)
    with opened as answer:
        reply = json.loads(json.load(answer)["choices"][0]["message"]["content"])
    if "error" in reply:
        raise RuntimeError(reply["error"])
    return reply["result"]
def function(name):
    def called(*args, **kwargs):
        return call(name, list(args), kwargs)
    called.__name__ = name
    return called
def read(text):
    try:
        return json.loads(text)
    except ValueError:
        return text
if __name__ == "__main__":
    name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
    if words[:1] == ["--json"] or not words:
        given = json.loads(words[1] if words[1:] else sys.stdin.read())
        given = given if isinstance(given, dict) else {"args": given}
        args = given.get("args", [])
        kwargs = given.get("kwargs", {k: v for k, v in given.items() if k not in ("args", "kwargs")})
    else:
        args, kwargs = ([words] if name == "llm_batch" else [read(word) for word in words]), {}
    result = call(name, args, kwargs)
    for one in result if name == "llm_batch" else [result]:
        print(one if isinstance(one, str) else json.dumps(one))
"""
# Run before every cell: an interpreter that was restarted has lost it.
PRELUDE = """
if "__rlm_answer" not in globals():
    import sys as __sys
    __sys.path.insert(0, {control!r})
    import rlm_tools as __tools
    __import__("os").chdir(__tools.settings["root"])
    globals().update({{name: __tools.function(name) for name in __tools.settings["names"]}})
    answer = {{"ready": False, "content": ""}}
    def __rlm_answer():
        import json
        print(json.dumps({{"ready": bool(answer.get("ready")), "content": str(answer.get("content", ""))}}))
"""
BASH_ANSWER = (
    "if [ -f {control}/env ]; then . {control}/env; fi; "
    'printf "%s\\n%s" "$ANSWER_READY" "$ANSWER_CONTENT" | python3 -c '
    '\'import json, sys; ready, _, text = sys.stdin.read().partition("\\n"); '
    'print(json.dumps({{"ready": ready.lower() in ("1", "true", "yes"), "content": text}}))\''
)


def bash_cell(code: str, control: str, root: str) -> str:
    """A script that runs code where the last one ended: its exported variables and its folder."""
    folder = shlex.quote(control)
    return (
        f'cd {shlex.quote(root)}; export PATH={folder}/bin:"$PATH"; if [ -f {folder}/env ]; then . {folder}/env; fi; '
        f'cd "$(cat {folder}/pwd 2>/dev/null || pwd)"; '
        f"trap 'export -p > {folder}/env; pwd > {folder}/pwd' EXIT\n{code}\n"
    )


def answer_of(said: str) -> dict[str, Any]:
    """The answer in what the sandbox wrote, where any code of the model may have written something else."""
    try:
        answer = parse_json(said.strip(), ANSWER_BYTES)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        return {"ready": False, "content": ""}
    return {"ready": bool(answer.get("ready")), "content": str(answer.get("content", ""))}


def scaffold(env: Any) -> str:
    """What comes before the first message of the user: the REPL, its functions and the limits."""
    is_python = env.repl_language == "python"
    ready = (
        'Put your answer into `answer["content"]`, then set `answer["ready"] = True`.'
        if is_python
        else "Put your answer into the variable `ANSWER_CONTENT` (export it), then `export ANSWER_READY=1`."
    )
    tool = f"call_{env.repl_language}_repl"
    parts = [env.custom_system_prompt or f"You have a REPL, the tool `{tool}`, and a folder of files. {ready}"]
    if is_python and env.pip_install_packages:
        parts.append(f"These packages can be imported: {', '.join(env.pip_install_packages.split())}.")
    if env.enable_sub_llms:
        usage = "llm_batch(prompts: list[str]) -> list[str]" if is_python else "llm_batch 'PROMPT' 'PROMPT'..."
        parts.append(f"In the REPL, `{usage}` asks fresh copies of yourself, all prompts at once.")
    if env.root_tool_defs:
        how = "functions" if is_python else "commands, whose arguments are JSON,"
        parts.append(f"There are {how} in the REPL:\n{_listed(env.root_tool_defs)}")
    if env.enable_sub_llms and env.sub_tool_defs:
        parts.append(f"The copies have tools:\n{_listed(env.sub_tool_defs)}")
    for budget, whose in ((env.root_max_completion_tokens, "You"), (env.sub_max_completion_tokens, "All copies")):
        if budget is not None:
            parts.append(f"{whose} may write {budget} tokens in all.")
    if env.max_turns_in_context is not None:
        parts.append(f"You have {env.max_turns_in_context} turns.")
    parts.append("The file `.messages` in the folder has this conversation, a JSON object a line.")
    return "<SCAFFOLDING>\n" + "\n\n".join(parts) + "\n</SCAFFOLDING>\n\n"


def _listed(tools: list[Any]) -> str:
    return "\n".join(f"- {tool['name']}: {tool['description']} {json.dumps(tool['parameters'])}" for tool in tools)
