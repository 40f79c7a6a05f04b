"""What a message says: text, or a list of parts (text, images, sounds), and the kind of dict that messages are made of.

Parts are OpenAI-shaped. What comes in as plain dicts becomes records here, so that `part["text"]` and `part.text` are
the same thing, and an empty part is refused at input and not by a server many turns later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, ClassVar, Self, TypeAlias

MessageContent: TypeAlias = str | list[Any] | None


class Record(dict[str, Any]):
    """A dict whose keys are also attributes. Fields named in `_defaults` read as their default when absent."""

    _defaults: ClassVar[dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}") from None

    def __missing__(self, name: str) -> Any:
        return deepcopy(type(self)._defaults[name])

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    # The pydantic spelling, which 0.1 environments use.

    def model_dump(self, *, exclude_none: bool = False, **_: Any) -> dict[str, Any]:
        """A plain, deep-copied dict."""
        plain: dict[str, Any] = _plain(self, exclude_none)
        return plain

    def model_dump_json(self, *, exclude_none: bool = False, indent: int | None = None, **_: Any) -> str:
        return json.dumps(self.model_dump(exclude_none=exclude_none), indent=indent)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        fields = deepcopy(dict(self)) if deep else dict(self)
        return type(self)(**{**fields, **(update or {})})

    @classmethod
    def model_validate(cls, fields: Mapping[str, Any]) -> Self:
        return fields if isinstance(fields, cls) else cls(**fields)


def _plain(value: Any, exclude_none: bool) -> Any:
    if isinstance(value, Mapping):
        kept = value.items() if not exclude_none else [pair for pair in value.items() if pair[1] is not None]
        return {key: _plain(item, exclude_none) for key, item in kept}
    if isinstance(value, list | tuple):
        return [_plain(item, exclude_none) for item in value]
    return value


class TextContentPart(Record):
    """A part of a message's content: text."""

    def __init__(self, text: str, **extra: Any) -> None:
        super().__init__({**extra, "type": "text", "text": text})


class ImageUrlSource(Record):
    """Where an image is: an address, or the image itself as a `data:` URL."""

    def __init__(self, url: str, **extra: Any) -> None:
        super().__init__({**extra, "url": url})


class ImageUrlContentPart(Record):
    """A part of a message's content: an image."""

    def __init__(self, image_url: Mapping[str, Any] | str, **extra: Any) -> None:
        source = ImageUrlSource(image_url) if isinstance(image_url, str) else ImageUrlSource(**image_url)
        super().__init__({**extra, "type": "image_url", "image_url": source})


class InputAudioSource(Record):
    """A sound, base64-encoded, and its format (`wav`, `mp3`)."""

    def __init__(self, data: str, format: str, **extra: Any) -> None:
        super().__init__({**extra, "data": data, "format": format})


class InputAudioContentPart(Record):
    """A part of a message's content: a sound."""

    def __init__(self, input_audio: Mapping[str, Any], **extra: Any) -> None:
        super().__init__({**extra, "type": "input_audio", "input_audio": InputAudioSource(**input_audio)})


class GenericContentPart(Record):
    """A part of a message's content of a type that whet passes on as it is."""

    def __init__(self, type: str, **extra: Any) -> None:
        super().__init__({**extra, "type": type})


ContentPart: TypeAlias = TextContentPart | ImageUrlContentPart | InputAudioContentPart | GenericContentPart
_PART_TYPES: dict[str, tuple[type[Record], str]] = {
    "text": (TextContentPart, "a 'text'"),
    "image_url": (ImageUrlContentPart, "an 'image_url' with a 'url'"),
    "input_audio": (InputAudioContentPart, "an 'input_audio' with 'data' and 'format'"),
}


def as_content_part(part: Any) -> Record:
    """One part, from a dict or an object that dumps itself to one; fields that are None are left out.

    Raises ValueError or TypeError that say what it should be.
    """
    if isinstance(part, Record):
        return part
    given = fields_of(part, "a part of a content list should be a dict with a 'type'")
    fields = {key: value for key, value in given.items() if value is not None}
    kind = fields.pop("type", None)
    if not isinstance(kind, str):
        raise ValueError(f"a part of a content list has no 'type'; it has {', '.join(map(str, given)) or 'nothing'}")
    if kind not in _PART_TYPES:
        return GenericContentPart(kind, **fields)
    constructor, needs = _PART_TYPES[kind]
    try:
        made = constructor(**fields)
    except TypeError:
        made = None
    if made is None or not all(isinstance(text, str) for text in _texts(made)):
        raise ValueError(f"a content part of type '{kind}' should have {needs}")
    return made


def fields_of(value: Any, expected: str) -> dict[str, Any]:
    """A dict, or what an object dumps itself to (`model_dump`). Raises TypeError, beginning with `expected`."""
    if not isinstance(value, Mapping):
        dump = getattr(value, "model_dump", None)
        if dump is None:
            raise TypeError(f"{expected}, not {type(value).__name__}")
        value = dump(exclude_none=True)
    return dict(value)


def _texts(part: Record) -> list[Any]:
    """The required fields of a part."""
    if isinstance(part, TextContentPart):
        return [part["text"]]
    if isinstance(part, ImageUrlContentPart):
        return [part["image_url"]["url"]]
    return [part["input_audio"]["data"], part["input_audio"]["format"]]


def content_of(content: MessageContent) -> MessageContent:
    """The content of a message, its parts as records."""
    return [as_content_part(part) for part in content] if type(content) is list else content
