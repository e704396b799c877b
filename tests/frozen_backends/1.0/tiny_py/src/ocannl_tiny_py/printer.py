"""The printer: kernels of the loop language as text of the backend's language, here Python.

A printer is two functions over closed unions, one for statements and one for expressions. Replace
what they print, case by case: the suite compares the results with the reference interpreter's, bit
by bit.
"""

from ocannl_core.backend_api import CodegenError, bool_, float16, float64, merge_reads
from ocannl_core.backend_api.arithmetic import (
    BinaryOp,
    Kind,
    TernaryOp,
    from_bits,
    round_to,
    word_of,
)
from ocannl_core.backend_api.loops import (
    Allocate,
    Barrier,
    Binary,
    Block,
    CheckPositions,
    Const,
    ConstBits,
    DeclareLocal,
    Fill,
    For,
    Gather,
    IndexValue,
    Load,
    LoadMerge,
    LocalRead,
    Prefetch,
    Remark,
    Scatter,
    Scoped,
    SetLocal,
    Staged,
    Store,
    StoreVector,
    SubgroupReduce,
    Ternary,
    Unary,
    as_affine,
)
LANGUAGE = "python"
OPERATORS = {BinaryOp.ADD: "+", BinaryOp.SUB: "-", BinaryOp.MUL: "*"}
"""Operators of the language for `float64`; the other operations are calls of functions."""


class Printer:
    """The text of the kernels of one routine.

    Attributes:
        lines: The lines so far.
        operations: The functions that the text calls, by name: the primitive, the format of its
            operands, and the format of its result.
        checks: The checks of positions, in the order in which the text numbers them.
    """

    def __init__(self, nodes):
        self.lines = []
        self.operations = {}
        self.checks = []
        self._nodes = nodes
        self._names = {}
        self._depth = 0
        self._number = 0

    def kernel(self, symbol, kernel):
        """Print a kernel as a function of arrays, merge buffers and static indices."""
        self._names = {}
        names = [self._name(node) for node in kernel.arguments]
        names += [self._name(("merge buffer", node)) for node in merge_reads(kernel.body)]
        names += [self._name(index) for index in kernel.indices]
        self._line(f"def {symbol}({', '.join(names)}):")
        self._body(kernel.body)


    def _statement(self, stmt):
        match stmt:
            case Block(stmts):
                for each in stmts:
                    self._statement(each)
            case For(var, start, stop, body, bound=bound):  # of any kind: in order
                self._line(f"for {self._name(var)} in range({start}, {stop}):")
                if bound is not None:
                    end = self._affine(bound.end)
                    self._line(f"    if {self._affine(bound.index)} >= {end}: continue")
                self._body(body)
            case Store(node, indices, value):
                text = self._value(value)
                self._line(f"{self._name(node)}[{self._offset(node, indices)}] = {text}")
            case StoreVector(node, indices, length, arg):
                word, first = self._value(arg), self._new("first")
                numbers = f"list(numbers_of({word}, {self._nodes[node].dtype})[:{length}])"
                self._line(f"{first} = {self._offset(node, indices)}")
                self._line(f"{self._name(node)}[{first}:{first} + {length}] = {numbers}")
            case Scatter(node, indices, axis, position, value):
                at, info = self._new("at"), self._nodes[node]
                self._line(f"{at} = {self._value(position)}")
                self._line(f"if 0 <= {at} < {info.buffer_dims[axis]} and {at} == int({at}):")
                self._depth += 1
                text = self._value(value)
                offset = f"{self._offset(node, indices)} + int({at}) * {strides(info)[axis]}"
                self._line(f"{self._name(node)}[{offset}] = {text}")
                self._depth -= 1
            case Fill(node, value):
                self._line(f"{self._name(node)}[:] = {constant(value, self._nodes[node].dtype)}")
            case DeclareLocal(local):
                self._line(f"{self._name(local)} = None")
            case SetLocal(local, value):
                text = self._value(value)
                self._line(f"{self._name(local)} = {text}")
            case Allocate(node, _):  # without threads, every scope is the kernel's own memory
                info = self._nodes[node]
                self._line(f"{self._name(node)} = np.empty({info.size}, {info.dtype}.numpy)")
            case CheckPositions(node, extents=extents):
                ends = [each and self._name(each) for each in extents]
                number, given = len(self.checks), ", ".join(map(str, ends))
                self.checks.append(stmt)
                self._line(f"checks[{number}]({self._name(node)}, [{given}])")
            case Staged(language, text, body):
                if language == LANGUAGE:
                    for line in text.splitlines():
                        self._line(line)
                else:
                    self._statement(body)
            case Remark(text):
                self._line(f"# {ascii(text)}")  # on one line, whatever it contains
            case Prefetch():
                pass
            case Barrier() | SubgroupReduce():
                raise CodegenError("Iterations of this backend run one after the other.")
            case _:
                raise CodegenError("Kernels consist of statements.", found=type(stmt).__name__)

    def _body(self, body):
        """Print the statements of a loop or of a function."""
        self._depth += 1
        before = len(self.lines)
        self._statement(body)
        if len(self.lines) == before or self.lines[-1].lstrip().startswith("#"):
            self._line("pass")
        self._depth -= 1


    def _value(self, expr):
        """Return the text of an expression; print in front of the statement what it needs there."""
        match expr:
            case Load(node, indices):
                return self._cell(self._name(node), self._offset(node, indices), expr.dtype)
            case LoadMerge(node, indices):
                name = self._name(("merge buffer", node))
                return self._cell(name, self._offset(node, indices), expr.dtype)
            case Gather(node, indices, axis, position, dtype, beyond):
                at, info = self._new("at"), self._nodes[node]
                inside = f"0 <= ({at} := {self._value(position)}) < {info.buffer_dims[axis]}"
                offset = f"{self._offset(node, indices)} + int({at}) * {strides(info)[axis]}"
                cell = self._cell(self._name(node), offset, dtype)
                return f"({cell} if {inside} and {at} == int({at}) else {constant(beyond, dtype)})"
            case LocalRead(local):
                return self._name(local)
            case Scoped(local, body):
                # a function, so that it runs where the expression does, perhaps in a WHERE
                function = self._new("inlined")
                self._line(f"def {function}():")
                self._body(Block((DeclareLocal(local), body)))
                self._line(f"    return {self._name(local)}")
                return f"{function}()"
            case Unary(op, arg, dtype):
                return f"{self._operation(op, arg.dtype, dtype)}({self._value(arg)})"
            case Binary(op, left, right, dtype):
                a, b = self._value(left), self._value(right)
                if dtype is float64 and op in OPERATORS:
                    return f"({a} {OPERATORS[op]} {b})"
                return f"{self._operation(op, left.dtype, dtype)}({a}, {b})"
            case Ternary(op, first, second, third, dtype):
                a, b, c = (self._value(each) for each in (first, second, third))
                if op is TernaryOp.WHERE:  # evaluates one of the two
                    return f"({b} if {a} != 0 else {c})"
                return f"{self._operation(op, second.dtype, dtype)}({a}, {b}, {c})"
            case Const(value, dtype):
                return constant(value, dtype)
            case ConstBits(bits, dtype):
                return number(from_bits(bits & (1 << 64) - 1, dtype))
            case IndexValue(index, dtype):
                convert = "word_of({})" if dtype.kind is Kind.WORD else f"round_to({{}}, {dtype})"
                return convert.format(self._affine(index))
            case _:
                raise CodegenError("Values are expressions.", found=type(expr).__name__)

    def _operation(self, op, operand, result):
        name = f"{op.name.lower()}_{operand}" + (f"_{result}" if result is not operand else "")
        self.operations[name] = (op, operand, result)
        return name

    def _cell(self, name, offset, dtype):
        """Return the text of a cell as a number of Python."""
        if dtype.is_packed:  # two cells in a byte
            return f"half_of_byte({name}, {offset}, {dtype})"
        if dtype is bool_:
            return f"int({name}[{offset}])"
        if dtype.is_narrow and dtype is not float16:
            return f"float({name}[{offset}])"
        return f"{name}.item({offset})"


    def _affine(self, index):
        terms, offset = as_affine(index)
        texts = [f"{factor} * {self._name(var)}" for factor, var in terms]
        return " + ".join([*texts, str(offset)])

    def _offset(self, node, indices):
        """Return the text of the row-major offset of a cell, in cells."""
        pairs = zip(strides(self._nodes[node]), indices, strict=True)
        return " + ".join(f"{stride} * ({self._affine(index)})" for stride, index in pairs) or "0"

    def _name(self, thing):
        if thing not in self._names:
            self._names[thing] = self._new("v")
        return self._names[thing]

    def _new(self, stem):
        self._number += 1
        return f"{stem}{self._number}"

    def _line(self, text):
        self.lines.append("    " * self._depth + text)


def strides(info):
    """Return the stride of each axis of a node, in cells, margins included."""
    found = []
    for extent in reversed(info.buffer_dims):
        found.insert(0, found[0] * last if found else 1)
        last = extent
    return found


def constant(value, dtype):
    """Return the text of a number in a format; an integer becomes a 128-bit word for that one."""
    return number(word_of(value) if dtype.kind is Kind.WORD else round_to(value, dtype))


def number(value):
    is_finite = isinstance(value, tuple) or abs(value) < float("inf")
    return repr(value) if is_finite else f"float('{value}')"
