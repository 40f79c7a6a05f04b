"""The result of an MCP tool call as the content of a tool message: text, or text and image parts.

Content that a model cannot see (sound, other files) and truncated content are named in the text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from whet.types import Tool

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock
    from mcp.types import Tool as ServerTool

NOTHING = "No result returned from tool"
MAX_IMAGE_BYTES = 20_000_000  # of base64, all images of a result together


def content_of(result: CallToolResult, max_chars: int) -> str | list[dict[str, Any]]:
    """A string where there is only text, otherwise `text` and `image_url` parts.

    Args:
        result: what the server answered.
        max_chars: characters of text after which the rest is left out, with a note that says how much.
    """
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [_text(json.dumps(result.structured_content, ensure_ascii=False))]
    parts = _bounded(parts, max_chars)
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts) if parts else NOTHING
    return parts


def tool_def_of(tool: ServerTool, prefix: str = "") -> Tool:
    """The definition of a server's tool for a model."""
    parameters = tool.input_schema or {"type": "object", "properties": {}}
    return Tool(name=prefix + tool.name, description=tool.description or "", parameters=parameters)


def text_of(result: CallToolResult, max_chars: int) -> str:
    """The text of a result alone."""
    content = content_of(result, max_chars)
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text") or NOTHING


def _part(block: ContentBlock) -> dict[str, Any]:
    from mcp import types

    match block:
        case types.TextContent(text=text):
            return _text(text)
        case types.ImageContent(data=data, mime_type=mime):
            return _image(data, mime)
        case types.AudioContent(data=data, mime_type=mime):
            return _text(f"[sound, {mime}, {_size(data)}: not shown]")
        case types.EmbeddedResource(resource=types.TextResourceContents(text=text)):
            return _text(text)
        case types.EmbeddedResource(resource=types.BlobResourceContents() as blob):
            mime = blob.mime_type or "unknown type"
            if mime.startswith("image/"):
                return _image(blob.blob, mime)
            return _text(f"[{blob.uri}, {mime}, {_size(blob.blob)}: not shown]")
        case types.ResourceLink(uri=uri, name=name, description=description):
            return _text(f"{name}: {uri}" + (f" ({description})" if description else ""))
    return _text(f"[{block.type}: not shown]")


def _bounded(parts: list[dict[str, Any]], max_chars: int) -> list[dict[str, Any]]:
    bounded: list[dict[str, Any]] = []
    room, image_room, left_out = max_chars, MAX_IMAGE_BYTES, 0
    for part in parts:
        if part["type"] == "text":
            kept = part["text"][:room]
            left_out += len(part["text"]) - len(kept)
            room -= len(kept)
            if kept or not part["text"]:
                bounded.append(_text(kept))
        else:
            size = len(part["image_url"]["url"])
            if size > image_room:
                bounded.append(_text(f"[image of {size} bytes: too large, left out]"))
            else:
                image_room -= size
                bounded.append(part)
    if left_out:
        bounded.append(_text(f"[{left_out} more characters left out]"))
    return bounded


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(data: str, mime: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}


def _size(base64_text: str) -> str:
    return f"{len(base64_text) * 3 // 4} bytes"
