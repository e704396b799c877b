"""A cache of compiled kernels on disk, the private directories and digests under it, files that are
replaced as a whole, and a compiler that is installed as a package.
"""

from ocannl_core.base.files.digests import add_json_digest, strip_json_digest
from ocannl_core.base.files.directory import (
    PrivateDirectory,
    private_directory,
    temporary_directory,
    unfinished_directory,
)
from ocannl_core.base.files.new_files import replacement, unfinished_name
from ocannl_core.base.files.object_cache import CachedObject, ObjectCache, object_cache
from ocannl_core.base.packaged_compiler import PackagedCompiler, cache_variables
from ocannl_core.base.packaged_compiler import find as packaged_compiler

# fmt: off
__all__ = [
    "CachedObject", "ObjectCache", "PackagedCompiler", "PrivateDirectory", "add_json_digest",
    "cache_variables", "object_cache", "packaged_compiler", "private_directory",
    "replacement", "strip_json_digest", "temporary_directory", "unfinished_directory",
    "unfinished_name",
]
# fmt: on
