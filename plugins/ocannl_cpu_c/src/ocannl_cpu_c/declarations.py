"""Declarations of the compiled code that Python calls, and the generator of `bindings.py`.

`python declarations.py` writes that file anew. It is part of the distribution, so that no program
imports a parser of C.
"""

from __future__ import annotations

import sys
from pathlib import Path

DECLARATIONS = """\
struct step {
  void (*kernel)(void *const *);
  void ***args;
  int64_t parts;
  int64_t work;
  int64_t private_count;
  int64_t private_at;
  const int64_t *offsets;
  const int64_t *failed;
  int64_t *index;
  int64_t start;
  int64_t end;
  int64_t by;
  int64_t jump;
};
struct routine {
  const struct step *steps;
  int64_t count;
  struct pool *pool;
  int64_t *indices;
  int64_t index_count;
  char *memory;
  int64_t room;
};
struct pool *ocannl_pool(int64_t threads);
struct python {
  void *none, *size, *item, *member, *as_integer, *as_pointer, *error, *call, *keep, *drop,
      *let_others_run, *run_again;
};
extern struct python ocannl_python;
extern char ocannl_method[];
extern void (*const ocannl_kernels[])(void *const *);
extern const char ocannl_keys[];
"""


def write(path: Path) -> None:
    """Write the module with these declarations as data."""
    from cffi import FFI

    maker = FFI()
    maker.cdef(DECLARATIONS)
    maker.set_source("ocannl_cpu_c.bindings", None)
    maker.emit_python_code(str(path))
    path.write_text(f"# ruff: noqa: E501\n# fmt: off\n{path.read_text()}")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("bindings.py"))
