"""An agent of a few lines, which asks its model twice and writes the second answer down."""

import pytest

AGENT = """
import json, os, sys, urllib.request

def ask(messages, **headers):
    body = json.dumps({"model": "any", "messages": messages}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer intercepted", **headers}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]

messages = [{"role": "user", "content": open(sys.argv[1]).read()}]
messages += [{"role": "assistant", "content": ask(messages)}, {"role": "user", "content": "Are you sure?"}]
ask([{"role": "user", "content": "Be my helper."}], **{"X-Depth": "1"})
with open("/app/answer.txt", "w") as file:
    file.write(ask(messages))
"""


@pytest.fixture(autouse=True)
def agent(bubblewrap):
    return AGENT


@pytest.fixture(scope="module", autouse=True)
def alias():
    import whet

    whet.install_verifiers_alias()
