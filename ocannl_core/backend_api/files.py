"""A cache of compiled kernels on disk, and the private directories and digests under it."""

from ocannl_core.base.files.digests import add_json_digest, strip_json_digest
from ocannl_core.base.files.directory import (
    PrivateDirectory,
    private_directory,
    temporary_directory,
    unfinished_directory,
)
from ocannl_core.base.files.new_files import unfinished_name
from ocannl_core.base.files.object_cache import CachedObject, ObjectCache, object_cache

# fmt: off
__all__ = [
    "CachedObject", "ObjectCache", "PrivateDirectory", "add_json_digest", "object_cache",
    "private_directory", "strip_json_digest", "temporary_directory", "unfinished_directory",
    "unfinished_name",
]
# fmt: on
