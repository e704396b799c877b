"""Digests of texts, and files with a digest, which detects damage.

The digest covers the name of the file, too, so that one entry of a cache is not taken for another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_SIZE = hashlib.sha256().digest_size
_KEY = b' "sha256": "'
_END = b'"}'


def text_digest(*parts: str) -> str:
    """Return a digest of texts in hexadecimal digits."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def add_digest(name: str, payload: bytes) -> bytes:
    """Return the content of a file of this name: a digest, then the payload."""
    return _digest(name, payload).digest() + payload


def strip_digest(name: str, content: bytes) -> bytes | None:
    """Return the payload of a file; None if the digest does not match."""
    payload = content[_SIZE:]
    return payload if _digest(name, payload).digest() == content[:_SIZE] else None


def add_json_digest(name: str, values: Mapping[str, Any]) -> bytes:
    """Return the content of a JSON file of this name: an object whose last member is a digest."""
    body = json.dumps({**values}, indent=1).encode()[:-1].rstrip() + (b"," if values else b"")
    return body + _KEY + _digest(name, body).hexdigest().encode() + _END


def strip_json_digest(name: str, content: bytes) -> dict[str, Any] | None:
    """Return the object of a JSON file without its digest; None if the digest does not match."""
    body = content[: -len(_KEY) - 2 * _SIZE - len(_END)]
    if content != body + _KEY + _digest(name, body).hexdigest().encode() + _END:
        return None
    try:
        values: dict[str, Any] = json.loads(content)
    except ValueError:
        return None
    del values["sha256"]
    return values


def _digest(name: str, payload: bytes) -> hashlib._Hash:
    digest = hashlib.sha256(f"{name}\n".encode("utf-8", "surrogateescape"))
    digest.update(payload)
    return digest
