"""Blocks: functions whose parameters are created once and shared by later applications, which
evaluate a model or train it.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

import numpy as np

from ocannl_core.base.context_variables import scoped
from ocannl_core.base.deferred_annotations import signature_of
from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.identity import exact_key
from ocannl_core.base.origin import BlockUse, caller_depth, caller_location, returns_of, running_use
from ocannl_core.base.renamed import with_new_keywords
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import Applied, Filled, Parameter, check_label, has_name
from ocannl_core.tensor.graph.expression import refusal
from ocannl_core.tensor.graph.parameter_set import Parameters
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.structures import leaves_of
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.messages import call_errors
from ocannl_core.tensor.messages.foreign_names import missing_attribute

P = ParamSpec("P")
R = TypeVar("R")


class NetworkBlock(Generic[R]):
    """A configured function of tensors. A call applies it; its parameters are created at the first
    application.

    Attributes:
        name: The function's name.
        label: The name given with `label=`.
        title: The name in printed code: the label, or the function's name, numbered among the
            sub-blocks of one block with the same function.
        own_parameters: The parameters of its own body that exist, by name, with their arguments.
        blocks: The blocks configured in its body, by key.
        function: The body.
    """

    def __init__(
        self,
        function: Callable[..., R],
        config: dict[str, Any],
        label: str | None,
        number: int = 1,
        signature: inspect.Signature | None = None,
    ) -> None:
        self.name = function.__name__
        self.label = label
        self.title = label or (self.name if number == 1 else f"{self.name}{number}")
        self.config = config
        self._signature = signature or signature_of(function)
        self.own_parameters: dict[str, tuple[Tensor, Hashable]] = {}
        self.blocks: dict[Hashable, NetworkBlock[Any]] = {}
        self._uses: dict[NetworkBlock[Any] | Tensor, None] = {}
        self.function = function
        self.has_been_applied = False
        self.__doc__, self.__name__ = function.__doc__, self.title

    @property
    def params(self) -> Parameters:
        """The parameters that its body uses, oldest first, with their names: its own, those of
        blocks inside, and those that were made outside; not those of its arguments.

        Raises:
            UsageError: if the block has not been applied, since no parameter exists before.
        """
        return Parameters(each for each in self._members() if not each.is_statistic)

    @property
    def statistics(self) -> Parameters:
        """The statistics that its body uses; see `params`."""
        return Parameters(each for each in self._members() if each.is_statistic)

    def _members(self) -> Iterator[Tensor]:
        if not self.has_been_applied:
            raise UsageError.at_caller(
                "The parameters of a block exist once it has been applied.",
                found=repr(self),
                fix=f"y = {call_errors.example_of(self.name) or 'net(x)'}, which creates them",
            )
        blocks = {self: None}
        pending = [self]
        while pending:
            block = pending.pop()
            yield from (parameter for parameter, _ in block.own_parameters.values())
            for used in block._uses:
                if isinstance(used, Tensor):
                    yield used
                elif used not in blocks:
                    blocks[used] = None
                    pending.append(used)

    def __call__(self, *args: Any, label: str | None = None, **named: Any) -> Any:
        """Return the body applied to tensors, by position or by name.

        With a label, it is another block of the same function and configuration, with parameters of
        its own; that block is returned without tensors. So `norm=oc.nn.rms_norm(epsilon=1e-5)` is
        as good as `norm=oc.nn.rms_norm`.
        """
        if label is not None:
            config = {**self.config, "label": label}
            other: Any = BlockFunction(self.function)(**config)
            return other(*args, **named) if args or named else other
        tensors = self._bound(args, named)
        session = sessions.current()
        block = self if session.block_copies is None else self._copy_in(session)
        with sessions.session_of_first(tensors).atomic(), session.atomic():
            return block._apply(session, tensors)

    def _copy_in(self, session: Session) -> NetworkBlock[R]:
        """Return the block's copy in a session that keeps copies, unless an application made it."""
        assert session.block_copies is not None
        around = () if session.block is None else session.block.blocks
        if any(each is self for block in around for each in block.blocks.values()):
            return self
        if self not in session.block_copies:
            made = NetworkBlock(self.function, self.config, self.label, signature=self._signature)
            made.title = self.title
            session.block_copies[self] = made
        return session.block_copies[self]

    def _apply(self, session: Session, tensors: tuple[Any, ...]) -> R:
        call_errors.check_flags(self.name, self.function, self.config)
        outer = session.block
        if outer is not None:
            session.undo_log.put(outer.block._uses, self, None)
            outer.reads(session, tensors)
        use = BlockUse(self.title, caller_location(), running_use.get())
        with scoped(running_use, use):
            try:
                session.block = BlockApplication(self, outer, tensors)
                result = self.function(*tensors, **self.config)
            except ShapeError as error:
                raise self._at_use(error, tensors, use) from None
            except Exception as error:
                call_errors.refuse(error, self.name, self.function, tensors, self.config)
                raise
            finally:
                session.block = outer
        session.undo_log.set(self, "has_been_applied", True)
        made = [each.value for each in leaves_of(result) if isinstance(each.value, Tensor)]
        if not made:
            raise UsageError(
                "The body of a block returns its results: a tensor, or several.",
                found=f"{self.name} returned {reprlib.repr(result)}",
                where="\n".join(map(str, returns_of(self.function)))
                or str(caller_location() or ""),
                fix="end the function with return, and a tensor",
            )
        name: tuple[str, ...] = (self.name, self.label) if self.label else (self.title,)
        name = (*name, *_source_of(tensors))
        for tensor in made:
            # one that is only passed on keeps its own label
            if isinstance(tensor.definition, Applied) and all(tensor is not x for x in tensors):
                tensor.relabel(name)
        return result

    def _at_use(self, error: ShapeError, tensors: tuple[Any, ...], use: BlockUse) -> ShapeError:
        """Return an error of the body with the use of the block above it."""
        line = use.location
        if line is None or str(line) in error.where.partition("\n")[0]:
            return error  # one of our own blocks: its body has no line of the user
        given = " and ".join(
            f"{'_'.join(each.label)} of shape {each.shape}"
            for each in tensors
            if isinstance(each, Tensor)
        )
        applied = f"{self.title} applied to {given}" if given else self.title
        where = f"{applied}, at {line}\n{error.where}"
        return ShapeError(error.rule, found=error.found, where=where, fix=error.fix)

    def _bound(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return the tensors for the positional parameters of the body."""
        signature = self._signature
        try:
            bound = signature.bind(*args, **named, **self.config)
        except TypeError as error:
            raise UsageError.at_caller(
                f"The positional parameters of {self.name} are the tensors that it is applied to.",
                found=f"{error}; {len(args) + len(named)} given",
                fix=call_errors.example_of(self.name) or f"{self.name}{signature}",
            ) from None
        bound.apply_defaults()
        return bound.args

    def __copy__(self) -> NetworkBlock[R]:
        return self

    __deepcopy__ = __reduce_ex__ = refusal(
        "A block is a function with parameters, which copies share: it is not copied or pickled.",
        "a copy of {}",
        'block(label="other") is a block of the same configuration with parameters of its own;\n'
        'oc.save("model.safetensors", ctx, loss) writes the cells of parameters',
    )

    def __getattr__(self, name: str) -> Any:
        if name == "__signature__":  # not a property: the class has a signature, too
            return _signature_of_application(self._signature)
        raise _missing_attribute(self, name)

    def __repr__(self) -> str:
        config = ", ".join(f"{key}={value!r}" for key, value in self.config.items())
        return f"<block {self.name}({config}){' ' + self.label if self.label else ''}>"


def _signature_of_application(body: inspect.Signature) -> inspect.Signature:
    """Return the signature of a configured body: its tensors, and the label of another block."""
    kinds = inspect.Parameter
    tensors = [each for each in body.parameters.values() if each.kind <= kinds.VAR_POSITIONAL]
    if all(each.name != "label" for each in tensors):
        tensors.append(kinds("label", kinds.KEYWORD_ONLY, default=None, annotation="str | None"))
    return body.replace(parameters=tensors)


_PARAMETERS = """net.params are those of a block that was applied, loss.params those of a loss
cells are in the context: ctx[p]
optimizers take the loss: step = ctx.compile(oc.train.SGD(learning_rate=0.1).minimize(loss))"""
_ATTRIBUTES = {
    **dict.fromkeys(
        ["params", "parameters", "named_parameters", "trainable_weights", "weights"], _PARAMETERS
    ),
    "state_dict": "oc.save('net.safetensors', ctx, loss), or {name: ctx[p] for name, p in "
    "loss.params.items()}",
    "fit": "oc.train.fit(step, loader, [x, y], loss=loss)",
    "compile": "step = ctx.compile(opt.minimize(loss))",
    "summary": "oc.summary(net(x))",
    "evaluate": "oc.train.evaluate(routine, loader, [x, y], accuracy)",
    "predict": "routine = ctx.compile(oc.train.forward(net(x))), then routine() and ctx[y]",
    "forward": "net(x)",
    **dict.fromkeys(["eval", "train"], "with oc.evaluation(): net(x)"),
    **dict.fromkeys(["save", "save_weights"], "oc.save('net.safetensors', ctx, loss)"),
    **dict.fromkeys(["load", "load_weights", "load_state_dict"], "oc.load(path, ctx, loss)"),
    "to": "oc.Context('cuda') is a device, where ctx.compile makes routines",
}
"""Attributes of models in other libraries, and their counterparts."""


def _missing_attribute(block: object, name: str) -> AttributeError:
    rule = "A block is a function of tensors and has no attribute"
    return missing_attribute(block, name, rule, repr(block), _ATTRIBUTES)


class BlockApplication:
    """One run of a block's body, with the names of the parameters used so far."""

    def __init__(
        self, block: NetworkBlock[Any], outer: BlockApplication | None, arguments: Sequence[Any]
    ) -> None:
        self.block = block
        self.outer = outer
        self._arguments = arguments
        self.blocks: tuple[NetworkBlock[Any], ...] = (*(outer.blocks if outer else ()), block)
        self.names: set[str] = set()
        self.path: tuple[str, ...] = (*(outer.path if outer else ()), block.title)
        self.is_later: bool = block.has_been_applied or (outer is not None and outer.is_later)
        """The block, or an enclosing one, has been applied before."""
        self.uses: Counter[Hashable] = Counter()
        """The number of earlier uses of each key of a sub-block."""

    def reads(self, session: Session, operands: Iterable[object]) -> None:
        """Note the parameters among operands of the body that are no arguments."""
        for each in operands:
            if not isinstance(each, Tensor) or not each.is_parameter:
                continue
            if all(each is not argument for argument in self._arguments):
                session.undo_log.put(self.block._uses, each, None)

    @property
    def around(self) -> tuple[BlockApplication, ...]:
        """The applications around it, outermost first, and itself."""
        return (*(self.outer.around if self.outer else ()), self)


class BlockFunction(Generic[P, R]):
    """A function decorated with `@op`: positional parameters are tensors, keyword-only ones
    configuration.

    `f(hidden=64)` is a block; `f(x, hidden=64)` applies a new one at once. `label=` names it.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        self._signature = signature_of(function)
        is_ours = str(function.__module__).startswith("ocannl_core.nn.")
        self._title = f"oc.nn.{function.__name__}" if is_ours else ""
        functools.update_wrapper(self, function)

    def __get__(self, instance: object, owner: type | None = None) -> BlockFunction[..., R]:
        """Return the function bound to an object, which is no tensor of the body."""
        if instance is None:
            return self
        return BlockFunction(self._function.__get__(instance, owner))

    def __copy__(self) -> BlockFunction[P, R]:
        return self

    def __deepcopy__(self, memo: object) -> BlockFunction[P, R]:
        return self

    def __reduce__(self) -> str:
        return self._function.__qualname__

    def __getattr__(self, name: str) -> NoReturn:
        raise _missing_attribute(self, name)

    def __repr__(self) -> str:
        return f"<block function {self._function.__name__}{self._signature}>"

    def __call__(self, *args: Any, label: str | None = None, **keywords: Any) -> Any:
        check_label(label)
        keywords = with_new_keywords(self._title, keywords)
        parameters = self._signature.parameters
        if "label" in parameters and parameters["label"].kind is inspect.Parameter.KEYWORD_ONLY:
            keywords["label"] = label  # the body may have a parameter for the label, too
        named = {
            name: value
            for name, value in keywords.items()
            if name in parameters
            and parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        }
        config = {name: value for name, value in keywords.items() if name not in named}
        if self._title and args and _is_size(args[0]):
            names = [n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
            raise UsageError.at_caller(
                f"{self._title} takes tensors by position, and its configuration by keyword.",
                found=f"{args[0]!r}, where the input stands; sizes of inputs are inferred",
                fix=f"write {self._title}({', '.join(f'{name}=...' for name in names)})",
            )
        self._check_config(config)
        block = self._block(config, label)
        return block(*args, **named) if args or named else block

    def _block(self, config: dict[str, Any], label: str | None) -> NetworkBlock[R]:
        """Return a new block; inside another block's body, the sub-block of this place."""
        application: BlockApplication | None = sessions.current().block
        if application is None:
            return NetworkBlock(self._function, config, label, signature=self._signature)
        key = (
            self._function,
            label,
            tuple((name, _key_of(value, name)) for name, value in sorted(config.items())),
        )
        place = (key, application.uses[key])
        undo_log = sessions.current().undo_log
        undo_log.put(application.uses, key, application.uses[key] + 1)
        owned = application.block.blocks
        if place not in owned:
            number = 1 + sum(block.name == self._function.__name__ for block in owned.values())
            made = NetworkBlock(self._function, config, label, number, self._signature)
            undo_log.put(owned, place, made)
        return owned[place]

    def _check_config(self, config: dict[str, Any]) -> None:
        parameters = self._signature.parameters
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        keywords = {n: p for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
        unknown = [name for name in config if name not in keywords and not takes_any]
        missing = [
            n
            for n, p in keywords.items()
            if p.default is inspect.Parameter.empty and n not in config
        ]
        if not unknown and not missing:
            return
        raise UsageError.at_caller(
            f"The configuration of {self._function.__name__} is its keyword-only parameters.",
            found="; ".join(
                [f"unknown {', '.join(unknown)}"] * bool(unknown)
                + [f"missing {', '.join(missing)}"] * bool(missing)
            ),
            fix=call_errors.renamed_arguments(
                [name for name in config if name not in keywords], self._signature
            )
            or "pass " + (", ".join(f"{name}=..." for name in keywords) or "tensors only"),
        )


def _is_size(value: object) -> bool:
    """Return True for a number of features or several, which no block takes as its input."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_is_size, value))
    return isinstance(value, int) and not isinstance(value, bool)


def op(function: Callable[P, R]) -> BlockFunction[P, R]:
    """Turn a function of tensors into a block: parameters inside are created once per configured
    block.

        @oc.op
        def mlp_layer(x, *, hidden):
            return oc.relu(oc.param("w") @ x + oc.param("b", output=[hidden]))

        layer = mlp_layer(hidden=64, label="L1")
        y1, y2 = layer(x1), layer(x2)               # share w and b
        y = mlp_layer(x, hidden=64)                 # a block of its own

    Positional parameters are tensors, keyword-only ones configuration. A call without tensors
    returns an `oc.NetworkBlock`, one with tensors the result of a new block. `label=` names it.
    """
    return BlockFunction(function)


def shared_parameter(
    session: Session, name: str, arguments: Hashable, create: Callable[[tuple[str, ...]], Tensor]
) -> Tensor:
    """Return the parameter of a name in the running block, created by `create` when it is new."""
    application: BlockApplication | None = session.block
    if application is None:
        return create((name,))
    block = application.block
    if name in application.names:
        raise UsageError.at_caller(
            "A block's application uses each parameter name once.",
            found=f"param({name!r}) twice in {block.name}",
            fix="give the second one another name, or keep the first one in a variable",
        )
    session.undo_log.add(application.names, name)
    if name in block.own_parameters:
        parameter, made_with = block.own_parameters[name]
        if parameter.session is not session:
            raise UsageError.at_caller(
                "The applications of a block belong to one session, as its parameters do.",
                found=f"{block.name} in another session than the one that made its parameters",
                fix="configure the block anew in every session, also after oc.reset()",
            )
        if made_with != arguments:
            raise UsageError.at_caller(
                "Applications of one block share parameters, so they state them in the same way.",
                found=f"param({name!r}) with other sizes or formats than in the first application "
                f"of {block.name}",
                fix="configure a second block",
            )
        return parameter
    parameter = create((name, *application.path))
    if application.is_later and not parameter.is_statistic:  # training has more than evaluation
        warnings.warn(
            f"parameter {name!r} of {block.name} is new in a later application of the block; "
            "earlier applications did not use it",
            stacklevel=caller_depth(),
        )
    session.undo_log.put(block.own_parameters, name, (parameter, arguments))
    return parameter


def _key_of(value: Any, name: str, around: tuple[Any, ...] = ()) -> Hashable:
    """Return a key that is equal for equal values of a configuration, in every application.

    Args:
        around: The functions that capture the value, each of which is met once.
    """
    match value:
        case list() | tuple():
            return (type(value).__name__, *(_key_of(each, name, around) for each in value))
        case dict():
            items = [(str(key), _key_of(each, name, around)) for key, each in value.items()]
            return ("dict", *sorted(items, key=lambda item: item[0]))
        case np.ndarray() | np.generic():
            return ("array", value.shape, value.dtype.str, value.tobytes())
        case FunctionType():
            # a lambda in a body is a new object in every application
            if any(value is each for each in around):
                return ("function", value.__code__)
            captured = [*inspect.getclosurevars(value).nonlocals.values(), value.__defaults__]
            return ("function", value.__code__, _key_of(captured, name, (*around, value)))
        case functools.partial():
            parts = (value.func, value.args, value.keywords)
            return ("partial", _key_of(parts, name, around))
    try:
        hash(value)
    except TypeError:
        raise UsageError.at_caller(
            "A block inside another one is identified by its configuration, so its values are "
            "compared.",
            found=f"{name}= is a {type(value).__name__}, which is not hashable",
            fix="pass numbers, texts, tuples, lists, dicts, arrays, functions or frozen "
            "dataclasses; or configure the block once, outside of the body",
        ) from None
    return exact_key(value)


def _source_of(tensors: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the name of the first argument of a body, if it has one: the last part of the label of
    the first tensor, `x` of `layer_L1_x`, so that names do not grow with depth.

    A tensor labelled after its operation has the name of its operand:

        layer(2.0 * x)  -->  layer_x        layer(oc.tensor([1, 2]))  -->  layer
    """
    pending = [each for each in tensors if isinstance(each, Tensor)]
    seen = set(pending)
    for tensor in pending:
        definition = tensor.definition
        if has_name(definition, tensor.label):
            return tensor.label[-1:]
        if isinstance(definition, Applied) and len(seen) < _LOOKED_AT:
            found = [each for each in definition.operands if each not in seen]
            found = [each for each in found if not isinstance(each.definition, Parameter | Filled)]
            seen.update(found)
            pending += found
    return ()


_LOOKED_AT = 64
"""About the greatest number of tensors searched for a name."""


_is_evaluating: ContextVar[bool] = ContextVar("ocannl_evaluation", default=False)


@contextmanager
def evaluation() -> Iterator[None]:
    """Build expressions for evaluation: dropout is the identity, and normalization reads running
    statistics.

        with oc.evaluation():
            scores = net(images)

    Applied to the same block as in training, it shares the parameters and the statistics.
    """
    with scoped(_is_evaluating, True):
        yield


def is_evaluating() -> bool:
    """Return True inside `with oc.evaluation():`."""
    return _is_evaluating.get()
