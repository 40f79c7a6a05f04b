"""Pages show what the caller may see, and make nothing of hostile text."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("nh3")

from whet.hub.pages.routes import render_readme

HOSTILE = """# Hi
<script>alert(1)</script> <img src=x onerror=alert(1)> <svg/onload=alert(1)>
[click](javascript:alert(1)) [data](data:text/html,<script>1</script>) <a href="java&#10;script:alert(1)">x</a>
<style>body{display:none}</style> <form action=/logout method=post><button>x</button></form> <iframe src=//e.example>
![image](https://tracker.example/pixel.png) <b onclick=alert(1) style="color:red" class=x id=y>bold</b>
| a | b |\n|---|---|\n| <script>1</script> | `<script>` |

[fine](https://example.org)
"""
BAD = re.compile(r"<(script|img|svg|style|form|iframe|button|object|base|meta)|\son\w+=|style=|javascript:|data:", re.I)


def page(hub: Any, path: str, status: int = 200, **more: Any) -> Any:
    answer = hub.client.request(more.pop("method", "GET"), path, follow_redirects=False, **more)
    assert answer.status_code == status, answer.text
    return answer


def log_in(hub: Any, user: str) -> None:
    hub.client.cookies.clear()
    answer = page(hub, "/login", 303, method="POST", data={"token": hub.tokens[user]})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


@pytest.mark.parametrize("kind", ["text/markdown", "text/plain", "text/x-rst"])
def test_readme_has_no_active_parts(kind: str) -> None:
    html = render_readme(HOSTILE, kind)
    tags = "".join(re.findall(r"<[^>]*>", html))
    assert not BAD.search(tags), tags
    if kind == "text/markdown":
        assert '<a href="https://example.org" rel="nofollow noopener noreferrer">fine</a>' in html
        assert "<h1>Hi</h1>" in html


def test_readme_that_is_made_to_take_long_does_not() -> None:
    for text in ("[" * 10_000, "> " * 20_000 + "x", "*a" * 5_000, "`" * 200_000):
        assert isinstance(render_readme(text, "text/markdown"), str)


def test_pages_have_a_strict_policy(hub: Any, packages: Any) -> None:
    hub.push("ann", "ann", packages.Wheel(readme=HOSTILE), visibility="PUBLIC")
    action = hub.ok("GET", "/environments/ann/word-game/versions/1.0.0")["action"]["id"]
    paths = ["/", "/?search=word", "/environments/ann/word-game", "/environments/ann/word-game/1.0.0"]
    for path in [*paths, f"/actions/{action}", "/login"]:
        answer = page(hub, path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        tags = "".join(re.findall(r"<[^>]*>", answer.text))
        assert not re.search(r"<script(?![^>]* src=\"/static/)|\son\w+=|\sstyle=|javascript:", tags, re.I), path
        assert answer.headers["x-content-type-options"] == "nosniff"
    shown = page(hub, "/environments/ann/word-game").text
    assert "whet env install ann/word-game@1.0.0" in shown
    assert "<h1>Hi</h1>" in shown
    assert "/static/whet.css" in shown
    assert page(hub, "/static/whet.css").headers["content-type"].startswith("text/css")


def test_text_of_users_is_escaped_everywhere(hub: Any, packages: Any) -> None:
    wheel = packages.Wheel()
    wheel.files[f"{wheel.info}/METADATA"] = packages.metadata("word-game", "1.0.0").replace(
        b"A game of words", b"<script>alert(1)</script>"
    )
    hub.push("ann", "ann", wheel, visibility="PUBLIC")
    hub.ok("POST", "/environments/ann/word-game/versions/1.0.0/yank", "ann", json={"reason": "<b onclick=x>"})
    for path in ("/", "/environments/ann/word-game/1.0.0", "/?search=<script>"):
        text = page(hub, path).text
        assert not re.search(r"<script(?! (type=\"module\" )?src=\"/static/)", text)
        assert "<b onclick" not in text


def test_private_pages_are_404_without_a_session_of_a_member(hub: Any, packages: Any) -> None:
    hub.push("ann", "ann", packages.Wheel())
    action = hub.ok("GET", "/environments/ann/word-game/versions/1.0.0", "ann")["action"]["id"]
    paths = ("/environments/ann/word-game", "/environments/ann/word-game/1.0.0", f"/actions/{action}")
    for user in (None, "eve"):
        if user is not None:
            log_in(hub, user)
        for path in paths:
            missing = page(hub, path.replace("word-game", "other-game").replace(action, "0" * 16), 404)
            assert page(hub, path, 404).text == missing.text.replace("other-game", "word-game")
        assert "word-game" not in page(hub, "/").text
    log_in(hub, "ann")
    for path in ("/", *paths):
        assert "word-game" in page(hub, path).text


def test_session_ends_with_its_token_and_is_none_for_the_api(hub: Any) -> None:
    made = hub.token("ann", "read")
    page(hub, "/login", 303, method="POST", data={"token": made["token"]})
    session = hub.client.cookies["whet_hub_session"]
    assert "Log out" in page(hub, "/").text
    hub.refused(401, "unauthenticated", "GET", "/whoami", headers={"Authorization": f"Bearer {session}"})
    hub.ok("DELETE", f"/tokens/{made['id']}", "ann")
    assert page(hub, "/", 303).headers["location"] == "/login?next=%2F"
    hub.client.cookies.clear()
    assert "is not known" in page(hub, "/login", 401, method="POST", data={"token": "whet_wrong"}).text


def test_forms_of_other_sites_are_refused(hub: Any) -> None:
    log_in(hub, "ann")
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        page(hub, "/logout", 403, method="POST", headers=headers)
        page(hub, "/login", 403, method="POST", headers=headers, data={"token": hub.tokens["eve"]})
    page(hub, "/logout", 303, method="POST", headers={"Origin": "http://hub.test"})
    page(hub, "/logout", 303, method="POST")


def test_login_with_a_code_is_approved_on_a_page(hub: Any) -> None:
    begun = hub.ok("POST", "/device/code", json={"client": "<b>whet</b> on laptop", "scope": "admin"})
    ask = {"device_code": begun["device_code"]}
    hub.refused(400, "authorization_pending", "POST", "/device/token", json=ask)
    hub.refused(400, "slow_down", "POST", "/device/token", json=ask)
    path = begun["verification_uri_complete"].removeprefix("http://hub.test")
    assert page(hub, path, 303).headers["location"].startswith("/login?next=")
    hub.token("ann", "push")
    log_in(hub, "ann:push")
    text = page(hub, path).text
    assert begun["user_code"] in text
    assert "&lt;b&gt;whet" in text
    page(hub, "/device", method="POST", data={"code": begun["user_code"], "decision": "approve"})
    hub.ahead += 10
    found = hub.ok("POST", "/device/token", json=ask)
    assert (found["user"], found["scope"]) == ("ann", "push")
    hub.refused(400, "expired_token", "POST", "/device/token", json=ask)
    hub.tokens["laptop"] = found["token"]
    assert hub.ok("GET", "/whoami", "laptop")["user"] == "ann"


def test_refused_and_expired_logins_give_no_token(hub: Any) -> None:
    first, second = (hub.ok("POST", "/device/code", json={"client": "x"}) for _ in range(2))
    hub.ok("POST", "/device/approval", "ann", json={"user_code": first["user_code"], "approve": False})
    hub.refused(400, "access_denied", "POST", "/device/token", json={"device_code": first["device_code"]})
    hub.ahead += 601
    hub.refused(
        404, "not_found", "POST", "/device/approval", "ann", json={"user_code": second["user_code"], "approve": True}
    )
    hub.refused(400, "expired_token", "POST", "/device/token", json={"device_code": second["device_code"]})
