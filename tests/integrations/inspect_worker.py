"""`python inspect_worker.py < jobs`: play Inspect tasks with a scripted model; a line of JSON for each.

A job is [target, arguments, answers]; its line the rows that matter, or the error that refuses it.
"""

import json
import sys

import whet
from whet.errors import WhetError

for line in sys.stdin:
    target, arguments, answers = json.loads(line)
    try:
        env = whet.load_environment(f"inspect:{target}", **arguments)
        outputs = env.evaluate_sync(whet.ScriptedClient(answers), "m")["outputs"]
    except WhetError as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
        continue
    shown = []
    for row in outputs:
        error = row["error"] and row["error"]["message"]
        texts = [message["content"] for message in [*row["prompt"], *row["completion"]]]
        shown.append({"reward": row["reward"], "error": error, "texts": texts, "metrics": row["metrics"]})
    print(json.dumps(shown))
