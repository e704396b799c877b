"""The tensors of a checkpoint by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.tensor.graph.parameter_set import Parameters
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import NetworkBlock
from ocannl_core.tensor.models.parameters import is_shared_by_models

Subject = Tensor | NetworkBlock[Any] | Mapping[str, Tensor] | Sequence[Tensor]
"""The tensors to save or load: the parameters and statistics of a tensor or of a block, tensors by
name, or a list of tensors.
"""

STATE = "optimizer/"
"""The beginning of the names of an optimizer's state."""


class HasState(Protocol):
    """An optimizer: tensors that it keeps between updates, by name."""

    @property
    def state(self) -> Mapping[str, Tensor]: ...


class Resumable(Protocol):
    """A source of batches with a position."""

    @property
    def state(self) -> tuple[int, int]: ...

    def restore(self, state: tuple[int, int]) -> None: ...


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of a checkpoint."""

    name: str
    """Its name in the program: in a file, unless another one is stated."""
    tensor: Tensor
    keeps_name: bool
    """True for state of training, whose name in a file is its own."""

    @property
    def is_count(self) -> bool:
        """True for a count of training, which files without training lack."""
        return self.tensor.is_statistic and self.tensor.dtype.is_integer


def named_tensors(subject: Subject, optimizer: HasState | None, function: str) -> tuple[Named, ...]:
    """Return the tensors of a checkpoint, with unique names.

    Raises:
        UsageError: if there are no tensors, or names are reserved.
    """
    tensors = _tensors_of(subject, function)
    found = [Named(name, t, t.is_statistic and is_shared_by_models(t)) for name, t in tensors]
    if not found:
        raise UsageError.at_caller(
            "A checkpoint has tensors.",
            found="none: " + _description(subject),
            fix="name tensors: {'w': w}",
        )
    for each in found:
        if not each.name or each.name == "__metadata__" or each.name.startswith(STATE):
            raise UsageError.at_caller(
                f"Names of tensors are texts; '__metadata__' and {STATE}... are reserved.",
                found=repr(each.name),
            )
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        raise UsageError.at_caller(
            "The names of a checkpoint are unique.",
            found=f"a parameter and a statistic are named {', '.join(map(repr, twice))}",
            fix="name the tensors: {**loss.params, 'running': loss.statistics['running']}",
        )
    if optimizer is not None:
        found += [Named(STATE + name, t, True) for name, t in _state_of(optimizer, function)]
    return tuple(found)


def _tensors_of(subject: Any, function: str) -> Iterator[tuple[str, Tensor]]:
    match subject:
        case Tensor() | NetworkBlock():
            yield from subject.params.items()
            yield from subject.statistics.items()
        case Parameters():
            yield from subject.items()
        case Mapping():
            for name, tensor in subject.items():
                if not isinstance(name, str) or not isinstance(tensor, Tensor):
                    raise _refusal(f"{name!r}: {tensor!r}", function)
                yield name, tensor
        case list() | tuple():
            for tensor in subject:
                if not isinstance(tensor, Tensor):
                    raise _refusal(repr(tensor), function)
            yield from Parameters(subject).items()
        case _:
            raise _refusal(_description(subject), function)


def _state_of(optimizer: HasState, function: str) -> Iterator[tuple[str, Tensor]]:
    state = getattr(optimizer, "state", None)
    if not isinstance(state, Mapping):
        raise UsageError.at_caller(
            f"optimizer= of {function} is an optimizer, which has a `state`.",
            found=_description(optimizer),
            fix="optimizer=oc.train.AdamW(learning_rate=1e-3); that of a second one is part of "
            'the subject: {**loss.params, **{f"second/{n}": t for n, t in other.state.items()}}',
        )
    if not state:
        raise UsageError.at_caller(
            "The state of an optimizer exists after its update is recorded.",
            found=f"{type(optimizer).__name__} without state",
            fix="compile opt.update(loss) first",
        )
    yield from state.items()


def _description(value: object) -> str:
    return f"a {type(value).__name__}: {value!r}"


def _refusal(found: str, function: str) -> UsageError:
    return UsageError.at_caller(
        f"{function} takes a tensor, a block, tensors by name, or a list of tensors.",
        found=found,
        fix=f"oc.{function}(path, ctx, loss), for the parameters of a loss; or {{'w': w}}",
    )
