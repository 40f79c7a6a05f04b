"""Routes for pip and uv: index pages, and the files they lead to."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from packaging.utils import canonicalize_name
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, RedirectResponse, StreamingResponse

from whet.hub import policy
from whet.hub.answers import moment
from whet.hub.api.call import CallParameter, HubRequest, Name, Owner, VersionName, action
from whet.hub.domain import environments
from whet.hub.domain.access import Caller, digest_of, find_account, permit, role_in
from whet.hub.domain.views import newest
from whet.hub.errors import HubError, not_found
from whet.hub.policy import Role
from whet.hub.storage.tables import Account, EnvironmentRow, StoredFile, Version

# Pages of a package index, as bytes: PEP 503 (HTML) and PEP 691 (JSON), with PEP 658, 592 and 700. Pure.

HTML, HTML_V1 = "text/html", "application/vnd.pypi.simple.v1+html"
JSON_V1 = "application/vnd.pypi.simple.v1+json"
Format = Literal["html", "json"]


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of an index page."""

    filename: str
    url: str  # relative to the page
    sha256: str
    size: int
    version: str
    uploaded: str
    requires_python: str
    metadata_sha256: str | None
    yanked: str | None  # the reason


@dataclass(frozen=True, slots=True)
class IndexPage:
    """A page as it is sent."""

    body: bytes
    packed: bytes
    etag: str
    packed_etag: str


def negotiate(accept: str | None) -> tuple[Format, str] | None:
    """The format that an Accept header prefers, and its content type; None where it allows neither."""
    best: tuple[float, int, Format, str] | None = None
    offered: list[tuple[str, Format]] = [(HTML, "html"), (JSON_V1, "json"), (HTML_V1, "html")]
    for position, (kind, format) in enumerate(offered):
        quality = max((_quality(part, kind) for part in (accept or "*/*").split(",")), default=0.0)
        if quality > 0 and (best is None or (quality, -position) > best[:2]):
            best = (quality, -position, format, kind)
    return (best[2], best[3]) if best is not None else None


def _quality(part: str, kind: str) -> float:
    wanted, *parameters = (item.strip().lower() for item in part.split(";"))
    if wanted not in (kind, "*/*", kind.partition("/")[0] + "/*") and wanted != kind.replace(".v1+", ".latest+"):
        return 0.0
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return min(max(float(parameter[2:]), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0


def projects_page(names: Sequence[str], format: Format) -> IndexPage:
    """The list of an owner's packages."""
    if format == "json":
        return _page(json.dumps({"meta": {"api-version": "1.1"}, "projects": [{"name": name} for name in names]}))
    links = "\n".join(f'<a href="{name}/">{name}</a><br>' for name in names)
    return _page(_document("Simple index", links))


def files_page(name: str, files: Sequence[IndexFile], format: Format) -> IndexPage:
    """The files of one package."""
    if format == "json":
        versions = list(dict.fromkeys(file.version for file in files))
        page = {"meta": {"api-version": "1.1"}, "name": name, "versions": versions, "files": list(map(_entry, files))}
        return _page(json.dumps(page))
    return _page(_document(f"Links for {name}", "\n".join(map(_link, files))))


def _entry(file: IndexFile) -> dict[str, object]:
    metadata: object = {"sha256": file.metadata_sha256} if file.metadata_sha256 else False
    return {
        "filename": file.filename,
        "url": file.url,
        "hashes": {"sha256": file.sha256},
        "size": file.size,
        "upload-time": file.uploaded,
        "requires-python": file.requires_python or None,
        "core-metadata": metadata,
        "data-dist-info-metadata": metadata,
        "yanked": False if file.yanked is None else (file.yanked or True),
    }


def _link(file: IndexFile) -> str:
    more = f' data-requires-python="{escape(file.requires_python)}"' if file.requires_python else ""
    if file.metadata_sha256:
        value = f"sha256={file.metadata_sha256}"
        more += f' data-core-metadata="{value}" data-dist-info-metadata="{value}"'
    if file.yanked is not None:
        more += f' data-yanked="{escape(file.yanked)}"'
    return f'<a href="{escape(file.url)}#sha256={file.sha256}"{more}>{escape(file.filename)}</a><br>'


def _document(title: str, body: str) -> str:
    head = f'<meta name="pypi:repository-version" content="1.1"><title>{escape(title)}</title>'
    return f"<!DOCTYPE html>\n<html><head>{head}</head><body>\n{body}\n</body></html>\n"


def _page(text: str) -> IndexPage:
    body = text.encode()
    tag = hashlib.sha256(body).hexdigest()[:32]
    return IndexPage(body, gzip.compress(body, 6, mtime=0), f'"{tag}"', f'"{tag}-gzip"')


router = APIRouter()
METHODS = ["GET", "HEAD"]
PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
PAGES, GRANTS, GRANT_S = 128, 4096, 60.0


Answer = IndexPage | Response


@dataclass(frozen=True, slots=True)
class Grant:
    """A page that a token (or none) was shown."""

    generation: int
    until: float
    page: IndexPage


class PageCache:
    """Pages by what they show, and which of them a caller was shown: valid until anything in the index changes."""

    def __init__(self) -> None:
        self._pages: OrderedDict[object, tuple[int, IndexPage]] = OrderedDict()
        self._grants: OrderedDict[object, Grant] = OrderedDict()
        self._lock = threading.Lock()

    def page(self, generation: int, key: object, make: Callable[[], IndexPage]) -> IndexPage:
        with self._lock:
            cached = self._pages.get(key)
        if cached is not None and cached[0] == generation:
            return cached[1]
        page = make()
        with self._lock:
            _keep(self._pages, key, (generation, page), PAGES)
        return page

    def granted(self, generation: int, key: object, now: float) -> IndexPage | None:
        grant = self._grants.get(key)
        return grant.page if grant is not None and grant.generation == generation and now < grant.until else None

    def grant(self, key: object, grant: Grant) -> None:
        with self._lock:
            _keep(self._grants, key, grant, GRANTS)


def _keep(cache: OrderedDict[object, Any], key: object, value: object, most: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > most:
        cache.popitem(last=False)


async def _answer(call: HubRequest, make: Callable[[Session, Caller, Format], Answer]) -> Response:
    """A page from the cache, or a new one. The generation is read first, so that a page is never newer than it."""
    format, kind = _format(call.request)
    cache, now, generation = _cache(call), call.hub.clock(), call.hub.database.generation
    key = (call.request.url.path, digest_of(call.token) if call.token is not None else None, format)
    page = cache.granted(generation, key, now)
    if page is not None:
        return _sent(call.request, page, kind)

    def slow() -> Response:
        with call.read() as (session, caller):
            made = make(session, caller, format)
            until = min(now + GRANT_S, caller.token.expires_at if caller.token is not None else now + GRANT_S)
        if isinstance(made, Response):
            return made
        cache.grant(key, Grant(generation, until, made))
        return _sent(call.request, made, kind)

    return await run_in_threadpool(slow)


@router.api_route("/index/{owner}/simple/", methods=METHODS)
@router.api_route("/index/{owner}/all/simple/", methods=METHODS)
@action(policy.READ)
async def index_of_owner(call: CallParameter, owner: Owner) -> Response:
    generation = call.hub.database.generation
    return await _answer(call, lambda *reader: _project_list(call, owner, generation, *reader))


@router.api_route("/index/{owner}/simple/{package}/", methods=METHODS)
@action(policy.READ)
async def index_of_package(call: CallParameter, owner: Owner, package: str) -> Response:
    return await _answer(call, lambda *reader: _package_page(call, owner, package, 4, *reader) or _missing(package))


@router.api_route("/index/{owner}/all/simple/{package}/", methods=METHODS)
@action(policy.READ)
async def single_index_of_package(call: CallParameter, owner: Owner, package: str) -> Response:
    return await _answer(call, lambda *reader: _single_index_page(call, owner, package, *reader))


def _single_index_page(
    call: HubRequest, owner: str, package: str, session: Session, caller: Caller, format: Format
) -> Answer:
    """A name of the owner is served from here or not at all; any other is the upstream's."""
    account = find_account(session, owner)
    if account is None:
        permit(caller, visible=False, what=f"index {owner}")
        raise not_found(f"index {owner}")
    name = canonicalize_name(package) if PACKAGE.fullmatch(package) else ""
    query = select(EnvironmentRow.id).where(EnvironmentRow.owner_id == account.id, EnvironmentRow.name == name)
    is_ours = session.scalar(query) is not None
    page = _package_page(call, owner, package, 5, session, caller, format) if is_ours else None
    if page is not None:
        return page
    if caller.user is None:
        raise HubError("unauthenticated", f"the single index of {owner} needs a token for {name or 'this name'}.")
    if is_ours or not name:
        return _missing(package)
    return RedirectResponse(f"{call.hub.upstream.rstrip('/')}/{name}/", status_code=302)


@router.api_route("/index/{owner}/simple", methods=METHODS)
@router.api_route("/index/{owner}/all/simple", methods=METHODS)
@router.api_route("/index/{owner}/simple/{package}", methods=METHODS)
@router.api_route("/index/{owner}/all/simple/{package}", methods=METHODS)
@action(policy.READ)
def with_slash(call: CallParameter, owner: Owner, package: str = "") -> Response:
    with call.read():
        last = call.request.url.path.rpartition("/")[2]
        return RedirectResponse(f"{quote(last)}/", status_code=308)


def _missing(package: str) -> Response:
    raise not_found(f"package {package if PACKAGE.fullmatch(package) else ''}".strip())


def _sees_all(session: Session, caller: Caller, account: Account) -> bool:
    return role_in(session, caller, account) >= Role.VIEWER


def _project_list(
    call: HubRequest, owner: str, generation: int, session: Session, caller: Caller, format: Format
) -> Answer:
    account = find_account(session, owner)
    permit(caller)
    if account is None:
        raise not_found(f"index {owner}")
    sees_all = _sees_all(session, caller, account)
    query = select(EnvironmentRow.name).where(EnvironmentRow.owner_id == account.id)
    query = query.where(EnvironmentRow.deleted_at.is_(None)).order_by(EnvironmentRow.name)
    if not sees_all:
        query = query.where(EnvironmentRow.visibility == "PUBLIC")
        if session.scalar(query.limit(1)) is None:
            raise not_found(f"index {owner}")
    return _cache(call).page(
        generation, (account.id, sees_all, format), lambda: projects_page(list(session.scalars(query)), format)
    )


def _package_page(
    call: HubRequest, owner: str, package: str, depth: int, session: Session, caller: Caller, format: Format
) -> Answer | None:
    """The page of a package; None where there is none that the caller sees."""
    if not PACKAGE.fullmatch(package):
        return None
    name = canonicalize_name(package)
    if name != package:
        return RedirectResponse(f"../{name}/", status_code=308)
    query = select(EnvironmentRow).join(EnvironmentRow.owner).where(Account.name == owner, EnvironmentRow.name == name)
    environment = session.scalar(query.where(EnvironmentRow.deleted_at.is_(None)))
    if environment is None:
        return None
    if environment.visibility != "PUBLIC" and not _sees_all(session, caller, environment.owner):
        return None
    permit(caller)
    return files_page(name, list(_files(session, environment, "../" * depth)), format)


def _files(session: Session, environment: EnvironmentRow, root: str) -> Iterator[IndexFile]:
    query = select(Version).where(Version.environment_id == environment.id, Version.deleted_at.is_(None))
    for row in reversed(newest(session.scalars(query))):
        for file in row.files:
            path = f"{environment.owner.name}/{environment.name}/{quote(row.version)}/{quote(file.filename)}"
            described = hashlib.sha256(row.core_metadata).hexdigest() if file.kind == "wheel" else None
            yield IndexFile(
                file.filename,
                f"{root}files/{path}",
                file.sha256,
                file.size,
                row.version,
                moment(row.created_at),
                row.requires_python,
                described,
                row.yanked_reason if row.yanked_at is not None else None,
            )


def _cache(call: HubRequest) -> PageCache:
    cache: PageCache = call.request.app.state.pages
    return cache


def _format(request: Request) -> tuple[Format, str]:
    chosen = negotiate(request.headers.get("accept"))
    return chosen if chosen is not None else ("html", "text/html")


def _sent(request: Request, page: IndexPage, kind: str) -> Response:
    packs = "gzip" in request.headers.get("accept-encoding", "")
    etag = page.packed_etag if packs else page.etag
    headers = {
        "ETag": etag,
        "Vary": "Accept, Authorization, Accept-Encoding",
        "Cache-Control": "private, no-cache",
        "Content-Type": kind + ("; charset=utf-8" if kind == "text/html" else ""),
    }
    wanted = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if etag in wanted or "*" in wanted:
        return Response(status_code=304, headers=headers)
    if packs:
        headers["Content-Encoding"] = "gzip"
    body = page.packed if packs else page.body
    if request.method == "HEAD":
        return Response(headers={**headers, "Content-Length": str(len(body))})
    return Response(body, headers=headers)


@router.api_route("/files/{owner}/{name}/{version}/{filename}", methods=METHODS)
@action(policy.READ)
def file(call: CallParameter, owner: Owner, name: Name, version: VersionName, filename: str) -> Response:
    """A wheel or source archive, or with `.metadata` after its name the metadata of a wheel."""
    with call.read() as (session, caller):
        row = environments.file_for(session, caller, owner, name, version, filename.removesuffix(".metadata"))
        public = row.version.environment.visibility == "PUBLIC"
        described = row.version.core_metadata
    headers = {"Cache-Control": f"{'public' if public else 'private'}, max-age=31536000, immutable"}
    if filename.endswith(".metadata"):
        if row.kind != "wheel":
            raise not_found("metadata of this file")
        return Response(described, headers={**headers, "Content-Type": "application/octet-stream"})
    headers |= {"ETag": f'"{row.sha256}"', "Vary": "Authorization"}
    if call.request.method == "GET":
        with contextlib.suppress(HubError), call.hub.database.write() as session:
            environments.count_download(session, row)
    return _bytes_of(call, row, headers)


def _bytes_of(call: HubRequest, row: StoredFile, headers: dict[str, str]) -> Response:
    kind = "application/octet-stream"
    path = call.hub.store.local_path(row.sha256)
    if path is not None:
        return FileResponse(path, headers=headers, media_type=kind, filename=row.filename, stat_result=os.stat(path))
    headers |= {"Content-Length": str(row.size), "Content-Disposition": f'attachment; filename="{row.filename}"'}
    opened = contextlib.ExitStack()
    stream = opened.enter_context(call.hub.store.open(row.sha256))

    def pieces() -> Iterator[bytes]:
        with opened:
            while call.request.method == "GET" and (piece := stream.read(1 << 18)):
                yield piece

    return StreamingResponse(pieces(), headers=headers, media_type=kind)
