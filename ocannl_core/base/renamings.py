"""Names that have another spelling: the tables behind warnings and `ocannl migrate`.

`renamed` finds values by old names, `moved` modules, `setting_sources` settings, each with a
warning at the line of its use, until the version `GONE`.
"""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.version import GONE as GONE

MODULES: dict[str, str] = {
    "custom": "tensor.custom",
    "debug": "runtime.observers",
    "debug.bounds": "runtime.observers.run_checks",
    "debug.value_guard": "runtime.observers.run_checks",
    "dtypes": "ir.numbers.dtypes",
    "errors": "base.errors",
    "hooks": "backend",
    "hooks.backend": "backend.loaded_backend",
    "indexing": "ir.indexing",
    "ir.kernels.parse": "testing.parser.plans",
    "ir.loops.parse": "testing.parser.loops",
    "kernel_passes": "passes.kernels",
    "kernels": "ir.kernels",
    "kernels.parse": "testing.parser.plans",
    "loopir": "ir.loops",
    "loopir.parse": "testing.parser.loops",
    "lower": "passes.lower",
    "machine_model": "schedule.machine_model",
    "node": "ir.node",
    "ops": "ir.numbers.primitives",
    "passes.cse": "passes.loops.cse",
    "passes.fma_contraction": "passes.loops.fma_contraction",
    "passes.licm": "passes.loops.licm",
    "passes.pipeline": "passes.loops.pipeline",
    "passes.simplify": "passes.loops.simplify",
    "ir.assignments.bufferise_calls": "ir.assignments.bufferize_calls",
    "passes.kernels.parallelise": "passes.kernels.parallelize",
    "passes.kernels.recognise_nests": "passes.kernels.recognize_nests",
    "persistence": "data.checkpoints",
    "plot": "display.pictures",
    "plot.pictures": "display.pictures.expression_graph",
    "schedule.rules.vectorisable": "schedule.rules.vectorizable",
    "schedule.rules.vectorise_output": "schedule.rules.vectorize_output",
    "schedule.rules.vectorise_reduction": "schedule.rules.vector_reductions",
    "settings": "base.settings",
    "target": "ir.target",
    "train.optimiser": "train.optimizer",
    "train.optimisers": "train.optimizers",
}
"""New names of modules that programs of users may import, and of their folders, by old names."""

SETTINGS: dict[str, str] = {
    "cc": "cpu_c__cc",
    "cc_arch": "cpu_c__arch",
    "check_compiler": "cpu_c__check_compiler",
    "cuda_compiler": "cuda__compiler",
    "cuda_graphs": "cuda__graphs",
    "mpi_device_memory": "mpi__device_memory",
    "mpi_timeout": "mpi__timeout",
}
"""Full names of settings of plugins, by the names that they had in the core."""

NAMES: dict[str, str] = {
    # the names of NumPy, the array API standard and PyTorch, where these agree
    "oc.bool_": "oc.bool",
    "oc.sub": "oc.subtract",
    "oc.mul": "oc.multiply",
    "oc.div": "oc.divide",
    "oc.neg": "oc.negative",
    "oc.mod": "oc.remainder",
    "oc.power": "oc.pow",
    "oc.recip": "oc.reciprocal",
    "oc.recip_sqrt": "oc.rsqrt",
    # parts of other operations, and the machinery of random numbers
    **{
        f"oc.{name}": f"oc.primitives.{name}"
        for name in (
            "first",
            "second",
            "identity",
            "interleave",
            "offsets",
            "outer_sum",
            "relu_gate",
            "sat01",
            "sat01_gate",
            "tropical",
        )
    },
    **{
        f"oc.{name}": f"oc.random.{new}"
        for name, new in {
            "random_words": "words",
            "threefry4x32": "threefry4x32",
            "uint4x32": "uint4x32",
            "uniform_of": "uniform_of",
            "word": "word",
        }.items()
    },
    "oc.mapped": "oc.data.memmap",
    "oc.unchanged_roots": "oc.train.unchanged_roots",
    # one operation for all accumulations
    "oc.scatter_add": "oc.scatter",
    # one spelling
    "oc.train.Optimiser": "oc.train.Optimizer",
    "oc.backend_api.launches.CompilerVectorisation": (
        "oc.backend_api.launches.CompilerVectorization"
    ),
    "oc.backend_api.loops.Staged": "oc.backend_api.loops.Verbatim",
    "oc.backend_api.rendering.NotVectorisedError": "oc.backend_api.rendering.NotVectorizedError",
}
"""New names of values, functions and classes, by old names; their arguments are the same."""

METHODS: dict[str, dict[str, str]] = {"oc.train.Optimizer": {"minimise": "minimize"}}
"""New names of methods, by classes and old names."""

KEYWORDS: dict[str, dict[str, str]] = {
    "oc.backend_api.c_family.render_kernel": {"nest": "kernel"},
    "oc.backend_api.parallel.parallel_iterations": {"nest": "kernel"},
    "oc.backend_api.rendering.RenderState": {"nest": "kernel"},
    "oc.clip": {"low": "min", "high": "max"},
    "oc.hardtanh": {"low": "min", "high": "max"},
    "oc.nn.batch_norm": {"axes": "shape"},
    "oc.nn.resize": {"axes": "axis"},
    "oc.settings.overrides": SETTINGS,
}
"""New names of keyword arguments, by functions and old names."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A function that another one replaces, with other arguments.

    Attributes:
        parameters: The parameters of the function; those after a star are keywords, which are
            passed on under their own names.
        call: The call in its place, with a parameter in braces for the text of its argument.
        place: The module that has the function until it is gone; empty if it is gone, because its
            name has another meaning.
    """

    parameters: tuple[str, ...]
    call: str
    place: str = ""


CALLS: dict[str, Rewritten] = {
    "oc.transpose": Rewritten(("x",), "{x}.T"),
    "oc.nn.mean": Rewritten(
        ("spec", "x"), "oc.mean({x}, logic={spec})", "ocannl_core.nn.statistics"
    ),
    "oc.nn.softmax": Rewritten(
        ("spec", "x", "*", "scale"), "oc.softmax({x}, logic={spec})", "ocannl_core.nn.statistics"
    ),
    "oc.nn.variance": Rewritten(
        ("spec", "x", "center"),
        "oc.mean(oc.square({x} - {center}), logic={spec})",
        "ocannl_core.nn.statistics",
    ),
}
"""Functions that another one replaces, by name."""
