"""Launches of a routine in a language of the C family, without the renderers of `c_family`."""

from ocannl_core.base.renamed import find_old_names
from ocannl_core.codegen.text.helper import EMULATED_TILES
from ocannl_core.codegen.text.kernel_text import CODEGEN_VERSION, CompilerVectorization, KernelText
from ocannl_core.codegen.text.routine_source import Launch, RoutineSource, RunStep

# fmt: off
__all__ = [
    "CODEGEN_VERSION", "EMULATED_TILES", "CompilerVectorization", "KernelText", "Launch",
    "RoutineSource", "RunStep",
]
# fmt: on

__getattr__ = find_old_names(__name__)
