"""Private directories and files with digests, for a cache of compiled code."""

from ocannl_core.storage.digests import add_json_digest, strip_json_digest
from ocannl_core.storage.directory import (
    PrivateDirectory,
    private_directory,
    temporary_directory,
    unfinished_name,
)

__all__ = [
    "PrivateDirectory",
    "add_json_digest",
    "private_directory",
    "strip_json_digest",
    "temporary_directory",
    "unfinished_name",
]
