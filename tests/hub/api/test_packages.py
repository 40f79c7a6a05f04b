"""The index as pip and uv read it, and the files that it leads to."""

from __future__ import annotations

import gzip
import hashlib
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

import pytest

pytest.importorskip("fastapi")

from whet.hub.worker import Worker

JSON_V1 = "application/vnd.pypi.simple.v1+json"
SIMPLE = "/index/ann/simple/word-game/"


class Links(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(dict(attrs))


@pytest.fixture
def shelf(hub: Any, packages: Any) -> Any:
    """A public environment with two versions, and a private one."""
    first = packages.Wheel(more="Requires-Python: >=3.11, <4\n")
    assert hub.push("ann", "ann", first, packages.sdist(), visibility="PUBLIC").status_code == 201
    assert hub.push("ann", "ann", packages.Wheel(version="1.1.0rc1")).status_code == 201
    assert hub.push("ann", "ann", packages.Wheel(name="own-game")).status_code == 201
    return hub


def test_html_and_json_pages_say_the_same(shelf: Any, packages: Any) -> None:
    html = shelf.ask("GET", SIMPLE, headers={"Accept": "text/html"})
    found = shelf.ask("GET", SIMPLE, headers={"Accept": JSON_V1})
    assert html.headers["content-type"] == "text/html; charset=utf-8"
    assert found.headers["content-type"] == JSON_V1
    body = found.json()
    assert body["meta"] == {"api-version": "1.1"}
    assert (body["name"], body["versions"]) == ("word-game", ["1.0.0", "1.1.0rc1"])
    links = Links(html.text).found
    assert [link["href"] for link in links] == [
        f"{file['url']}#sha256={file['hashes']['sha256']}" for file in body["files"]
    ]
    wheel = body["files"][0]
    data = packages.Wheel(more="Requires-Python: >=3.11, <4\n")
    assert wheel["filename"] == data.filename
    assert wheel["hashes"]["sha256"] == hashlib.sha256(data.bytes()).hexdigest()
    assert wheel["size"] == len(data.bytes())
    assert wheel["requires-python"] == links[0]["data-requires-python"]
    assert wheel["upload-time"].endswith("Z")
    address = urljoin(f"http://hub.test{SIMPLE}", wheel["url"]).removeprefix("http://hub.test")
    assert shelf.ask("GET", address).content == data.bytes()
    metadata = shelf.ask("GET", address + ".metadata").content
    assert metadata == data.contents()[f"{data.info}/METADATA"]
    assert wheel["core-metadata"] == {"sha256": hashlib.sha256(metadata).hexdigest()}
    assert links[0]["data-core-metadata"] == f"sha256={hashlib.sha256(metadata).hexdigest()}"
    assert shelf.ask("GET", "/files/ann/word-game/1.0.0/word_game-1.0.0.tar.gz.metadata").status_code == 404


def test_content_is_negotiated(shelf: Any) -> None:
    pip = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.1, text/html; q=0.01"
    for accept, kind in (
        (pip, JSON_V1),
        ("application/vnd.pypi.simple.v1+html", "application/vnd.pypi.simple.v1+html"),
        ("*/*", "text/html; charset=utf-8"),
        ("application/vnd.pypi.simple.latest+json", JSON_V1),
        ("image/png", "text/html; charset=utf-8"),
        ("text/html;q=x, application/vnd.pypi.simple.v1+json;q=0.2", JSON_V1),
    ):
        assert shelf.ask("GET", SIMPLE, headers={"Accept": accept}).headers["content-type"] == kind, accept


def test_etag_is_honoured_and_changes_with_the_page(shelf: Any) -> None:
    for encoding in ("identity", "gzip"):
        headers = {"Accept": JSON_V1, "Accept-Encoding": encoding}
        first = shelf.ask("GET", SIMPLE, headers=headers)
        again = shelf.ask("GET", SIMPLE, headers={**headers, "If-None-Match": f'"other", W/{first.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        head = shelf.ask("HEAD", SIMPLE, headers=headers)
        assert (head.headers["etag"], head.content) == (first.headers["etag"], b"")
    shelf.ok("POST", "/environments/ann/word-game/versions/1.0.0/yank", "ann", json={"reason": 'a "bad" one'})
    changed = shelf.ask("GET", SIMPLE, headers={**headers, "If-None-Match": first.headers["etag"]})
    assert changed.status_code == 200
    assert [file["yanked"] for file in changed.json()["files"]] == ['a "bad" one', 'a "bad" one', False]
    html = Links(shelf.ask("GET", SIMPLE).text).found
    assert [link.get("data-yanked") for link in html] == ['a "bad" one', 'a "bad" one', None]
    shelf.ok("DELETE", "/environments/ann/word-game/versions/1.0.0/yank", "ann")
    assert shelf.ask("GET", SIMPLE, headers=headers).headers["etag"] == first.headers["etag"]


def test_names_are_redirected_to_their_normal_form(shelf: Any) -> None:
    for path in ("/index/ann/simple/Word_Game/", "/index/ann/all/simple/word.game/"):
        answer = shelf.ask("GET", path)
        assert (answer.status_code, answer.headers["location"]) == (308, "../word-game/")
    answer = shelf.ask("GET", "/index/ann/simple/word-game")
    assert (answer.status_code, answer.headers["location"]) == (308, "word-game/")
    assert shelf.ask("GET", "/index/ann/simple").headers["location"] == "simple/"


def test_list_of_packages_is_what_the_caller_sees(shelf: Any) -> None:
    for path in ("/index/ann/simple/", "/index/ann/all/simple/"):
        public = shelf.ask("GET", path, headers={"Accept": JSON_V1}).json()
        own = shelf.ask("GET", path, "ann", headers={"Accept": JSON_V1}).json()
        assert [one["name"] for one in public["projects"]] == ["word-game"]
        assert [one["name"] for one in own["projects"]] == ["own-game", "word-game"]
        assert [link["href"] for link in Links(shelf.ask("GET", path, "ann").text).found] == ["own-game/", "word-game/"]


def test_single_index_redirects_only_names_that_the_owner_has_not(shelf: Any) -> None:
    single = "/index/ann/all/simple"
    for user in ("ann", "eve"):
        answer = shelf.ask("GET", f"{single}/Numpy/", user)
        assert (answer.status_code, answer.headers["location"]) == (302, "https://pypi.org/simple/numpy/")
    assert shelf.ask("GET", f"{single}/word-game/").status_code == 200
    assert shelf.ask("GET", f"{single}/own-game/", "ann").status_code == 200
    assert shelf.ask("GET", f"{single}/own-game/", "eve").status_code == 404
    assert shelf.ask("GET", f"{single}/own-game/").status_code == 401
    assert shelf.ask("GET", f"{single}/numpy/").status_code == 401
    assert shelf.ask("GET", "/index/no-one/all/simple/numpy/", "eve").status_code == 404
    shelf.ok("DELETE", "/environments/ann/own-game", "ann")
    assert shelf.ask("GET", f"{single}/own-game/", "ann").status_code == 404  # a deleted name is not the upstream's
    for name in ("..", "a%2Fb", "a%00", "%0d%0aX: y", "x" * 200):
        assert shelf.ask("GET", f"{single}/{name}/", "ann").status_code in (404, 422)


def test_basic_authentication_of_pip(shelf: Any) -> None:
    path = "/index/ann/simple/own-game/"
    assert shelf.client.get(path, auth=("__token__", shelf.tokens["ann"])).status_code == 200
    assert shelf.client.get(path, auth=("ann", shelf.tokens["ann"])).status_code == 401
    assert shelf.client.get(path, auth=("__token__", shelf.tokens["eve"])).status_code == 404


def test_file_is_sent_in_ranges_and_never_sniffed(shelf: Any, packages: Any) -> None:
    path = "/files/ann/word-game/1.1.0rc1/word_game-1.1.0rc1-py3-none-any.whl"
    whole = packages.Wheel(version="1.1.0rc1").bytes()
    part = shelf.ask("GET", path, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, whole[10:20])
    answer = shelf.ask("GET", path)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "attachment" in answer.headers["content-disposition"]
    assert "immutable" in answer.headers["cache-control"]
    assert shelf.ask("HEAD", path).content == b""


def test_packed_pages_are_the_same_bytes(shelf: Any) -> None:
    from whet.hub.api.packages import projects_page

    page = projects_page([f"game-{n}" for n in range(1000)], "html")
    assert gzip.decompress(page.packed) == page.body
    assert len(Links(page.body.decode()).found) == 1000


def test_file_that_the_storage_lost_is_named_and_its_action_fails(hub: Any, packages: Any) -> None:
    wheel = packages.Wheel()
    hub.push("ann", "ann", wheel, visibility="PUBLIC")
    hub.hub.store.remove(hashlib.sha256(wheel.bytes()).hexdigest())
    contents = "/environments/ann/word-game/versions/1.0.0/contents"
    for path in (f"/files/ann/word-game/1.0.0/{wheel.filename}", contents):
        assert "restore it from a backup" in hub.refused(500, "file_lost", "GET", path)["message"].lower()
    worker = Worker(hub.hub)
    assert worker.try_next()
    action = hub.ok("GET", "/environments/ann/word-game/versions/1.0.0/actions", "ann")["items"][-1]
    assert (action["state"], "no longer holds the file" in action["summary"]) == ("failed", True)
