"""Pages of a package index, as bytes: PEP 503 (HTML) and PEP 691 (JSON), with PEP 658, 592 and 700. Pure."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

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
    for place, (kind, format) in enumerate(offered):
        quality = max((_quality(part, kind) for part in (accept or "*/*").split(",")), default=0.0)
        if quality > 0 and (best is None or (quality, -place) > best[:2]):
            best = (quality, -place, format, kind)
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
        found = {"meta": {"api-version": "1.1"}, "name": name, "versions": versions, "files": list(map(_entry, files))}
        return _page(json.dumps(found))
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
