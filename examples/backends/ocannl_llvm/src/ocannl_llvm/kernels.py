"""Instructions as LLVM IR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from ocannl_core.backend_api.instructions import KernelInstructions, MachineType

TYPES: dict[MachineType, ir.Type] = {
    MachineType.HALF: ir.HalfType(),
    MachineType.SINGLE: ir.FloatType(),
    MachineType.DOUBLE: ir.DoubleType(),
}
TYPES |= {kind: ir.IntType(kind.bits) for kind in MachineType if kind not in TYPES}
INDEX, POINTER, VOID = TYPES[MachineType.I64], ir.PointerType(), ir.VoidType()
INTRINSICS = {"sqrt", "floor", "ceil", "trunc", "rint", "fabs", "fma", "copysign"}
SYMBOLS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "no": "uno"}
METHODS = {"and": "and_", "or": "or_"}


def kernel_text(symbol: str, kernel: KernelInstructions) -> str:
    """Return a kernel as a module with one function of a table of addresses."""
    module = ir.Module(symbol)
    # aliases are excluded for parameters only, so a wrapper unpacks the table
    kind = ir.FunctionType(VOID, [POINTER] * kernel.arguments)
    body = ir.Function(module, kind, f"{symbol}_body")
    body.linkage = "internal"
    body.attributes.add("alwaysinline")
    for argument in body.args:
        argument.add_attribute("noalias")
    builder = Builder(ir.IRBuilder(body.append_basic_block("entry")))
    kernel.append(builder, body.args)
    builder.b.ret_void()
    function = ir.Function(module, ir.FunctionType(VOID, [POINTER]), symbol)
    b = ir.IRBuilder(function.append_basic_block("entry"))
    cells = [
        b.gep(function.args[0], [INDEX(k)], source_etype=POINTER) for k in range(len(kind.args))
    ]
    b.call(body, [b.load(cell, typ=POINTER) for cell in cells])
    b.ret_void()
    return str(module)


class Builder:
    """An `InstructionBuilder` over llvmlite's."""

    has_half = True

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder

    def constant(self, kind: MachineType, number: float) -> Any:
        return TYPES[kind](number)

    def binary(self, operation: str, a: Any, b: Any) -> Any:
        if operation.startswith("index_"):
            return getattr(self.b, operation.removeprefix("index_"))(a, b, flags=["nsw"])
        return getattr(self.b, METHODS.get(operation, operation))(a, b)

    def compare(self, predicate: str, a: Any, b: Any) -> Any:
        symbol = SYMBOLS[predicate[-2:]]
        if a.type in (TYPES[MachineType.SINGLE], TYPES[MachineType.DOUBLE]):
            is_ordered = predicate.startswith("o")
            return (self.b.fcmp_ordered if is_ordered else self.b.fcmp_unordered)(symbol, a, b)
        is_unsigned = predicate.startswith("u")
        return (self.b.icmp_unsigned if is_unsigned else self.b.icmp_signed)(symbol, a, b)

    def cast(self, operation: str, value: Any, kind: MachineType) -> Any:
        return getattr(self.b, operation)(value, TYPES[kind])

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        return self.b.select(condition, a, b)

    def function(self, name: str, kind: MachineType, operands: Sequence[Any]) -> Any:
        result, module = TYPES[kind], self.b.module
        signature = ir.FunctionType(result, [result] * len(operands))
        if name in INTRINSICS:
            function = module.declare_intrinsic(f"llvm.{name}", [result], signature)
        else:
            symbol = name if kind is MachineType.DOUBLE else f"{name}f"
            function = module.globals.get(symbol) or ir.Function(module, signature, symbol)
        return self.b.call(function, operands)

    def local(self, kind: MachineType, count: int = 1) -> Any:
        with self.b.goto_entry_block():
            cells = self.b.alloca(TYPES[kind], INDEX(count))
            cells.align = 64 if count > 1 else None
        return cells

    def load(self, array: Any, index: Any, kind: MachineType) -> Any:
        return self.b.load(self._address(array, index, kind), typ=TYPES[kind])

    def store(self, array: Any, index: Any, kind: MachineType, value: Any) -> None:
        self.b.store(value, self._address(array, index, kind))

    def _address(self, array: Any, index: Any, kind: MachineType) -> Any:
        return self.b.gep(array, [index], inbounds=True, source_etype=TYPES[kind])

    def loop(self, start: Any, stop: Any, body: Callable[[Any], None]) -> None:
        before = self.b.block
        head, inside, end = (self.b.append_basic_block() for _ in range(3))
        self.b.branch(head)
        self.b.position_at_end(head)
        number = self.b.phi(INDEX)
        number.add_incoming(start, before)
        self.b.cbranch(self.b.icmp_signed("<", number, stop), inside, end)
        self.b.position_at_end(inside)
        body(number)
        number.add_incoming(self.b.add(number, INDEX(1), flags=["nsw"]), self.b.block)
        self.b.branch(head)
        self.b.position_at_end(end)

    def branch(self, condition: Any, body: Callable[[], None]) -> None:
        with self.b.if_then(condition):
            body()

    def choose(
        self,
        condition: Any,
        kinds: Sequence[MachineType],
        first: Callable[[], Sequence[Any]],
        second: Callable[[], Sequence[Any]],
    ) -> Sequence[Any]:
        ends = []
        with self.b.if_else(condition) as branches:
            for branch, emit in zip(branches, (first, second), strict=True):
                with branch:
                    ends.append((emit(), self.b.block))
        chosen = [self.b.phi(TYPES[kind]) for kind in kinds]
        for values, block in ends:
            for phi, value in zip(chosen, values, strict=True):
                phi.add_incoming(value, block)
        return chosen

    def leave(self) -> None:
        self.b.ret_void()
