"""Private directories and files with digests, for a cache of compiled code."""

from ocannl_core.storage.directory import (
    PrivateDirectory,
    private_directory,
    temporary_directory,
    unfinished_name,
)
from ocannl_core.storage.sealed import sealed_json, unsealed_json

__all__ = [
    "PrivateDirectory",
    "private_directory",
    "sealed_json",
    "temporary_directory",
    "unfinished_name",
    "unsealed_json",
]
