"""Templates with their values, and a page as one file.

Values of runs are text: autoescape is always on, and characters that are invisible or reorder text (control characters,
direction marks, lone surrogates) are replaced. A page in a file needs no network; should escaping fail, its content
security policy still allows only the style and the script whose hashes it names.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from whet.display.page.formats import FILTERS
from whet.system.terminal import REPLACEMENT

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
STYLES = ("whet.css", "rollouts.css", "report.css")
MODULE_SYNTAX = re.compile(r"^import .*\n|^export ", re.MULTILINE)
"""What makes a script a module of its own."""


@cache
def templates(folders: tuple[Path, ...] = ()) -> Environment:
    """The templates of this folder, and further ones that may extend them."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([FOLDER / "templates", *folders]),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS, visible=visible)
    return environment


def _visible(value: Any) -> Any:
    """Text escaped; markup of templates as it is."""
    return escape(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def visible(text: str) -> str:
    """`text` without characters that are invisible or reorder it."""
    return text if text.isprintable() else "".join(map(_seen, text))


def escape(text: str) -> Markup:
    """`text` for any position in a page: between tags or in a quoted attribute."""
    return Markup(html.escape(visible(text), quote=True))


def _seen(character: str) -> str:
    seen = character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"
    return character if seen else REPLACEMENT


def fragment(template: str, **values: Any) -> Markup:
    """A part of a page."""
    return Markup(templates().get_template(template).render(values))


def document(template: str, title: str, values: Mapping[str, Any], *, curves: bool = False) -> str:
    """A page as one file: a template with its values, all styles, and the scripts of its tables and `curves`."""
    style, script = "".join(map(_static, STYLES)), _script(curves)
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    body = fragment(template, **values)
    tags = {"style": Markup(f"<style>{style}</style>"), "script": Markup(f'<script type="module">{script}</script>')}
    return str(fragment("document.html", title=title, policy=policy, body=body, **tags))


@cache
def _script(curves: bool) -> str:
    """The modules of a page as one."""
    if not curves:
        return _static("tables.js")
    library = _static("vendor/uplot/uPlot.esm.js").replace("export { uPlot as default };", "return uPlot;")
    own = ("locale.js", "charts.js", "report.js", "tables.js")
    locale, *others = (MODULE_SYNTAX.sub("", _static(name)) for name in own)
    return "\n".join([locale, f"const uPlot = (() => {{{library}}})();", *others])


def _static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
