"""What a writer keeps with an episode besides its steps: a dict, as JSON that reads back as the same dict."""

import json
from collections.abc import Mapping
from typing import Any

from replaysvc.checks import shown
from replaysvc.codec.header import MAX_METADATA_BYTES
from replaysvc.errors import SpecMismatchError


def encode_metadata(metadata: Mapping[str, Any] | None) -> bytes:
    """Returns the stored form. Raises SpecMismatchError."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise SpecMismatchError("metadata", "a dict that JSON can hold", shown(metadata))
    try:
        encoded = json.dumps(dict(metadata or {}), allow_nan=False, ensure_ascii=False, sort_keys=True).encode()
        _check_keys(metadata or {})
    except (TypeError, ValueError, UnicodeError, RecursionError) as error:
        raise SpecMismatchError("metadata", "a dict that JSON can hold", str(error)) from error
    if len(encoded) > MAX_METADATA_BYTES:
        raise SpecMismatchError("metadata", f"at most {MAX_METADATA_BYTES} bytes of JSON", str(len(encoded)))
    return encoded


def _check_keys(value: Any) -> None:
    """Refuses keys that JSON would make text of: the dict would come back as another one. Raises SpecMismatchError."""
    children: Any = value if isinstance(value, list | tuple) else ()
    if isinstance(value, Mapping):
        children = value.values()
        for key in value:
            if not isinstance(key, str):
                raise SpecMismatchError("metadata", "keys that are text", shown(key))
    for child in children:
        _check_keys(child)
