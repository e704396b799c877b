"""Statements of shapes: equations between rows, in every direction."""

from __future__ import annotations

import pytest
from inline_snapshot import snapshot

from ocannl_core.base.errors import ShapeError, SpecError
from ocannl_core.base.origin import Origin
from ocannl_core.shape.environment import Environment
from ocannl_core.shape.language.shape_terms import Shape
from ocannl_core.shape.language.statement import parse_statement, statement_constraints


def say(environment: Environment, text: str, inputs: list[Shape], outputs: list[Shape]) -> None:
    statement, origin = parse_statement(text), Origin("op")
    environment.derive(
        outputs,
        inputs,
        lambda fresh: statement_constraints(statement, inputs, outputs, origin, fresh),
    )


def output_of(text: str, *inputs: tuple[int, ...]) -> str:
    environment = Environment()
    given = [environment.fresh_shape(batch=(), input=(), output=dims) for dims in inputs]
    result = environment.fresh_shape()
    say(environment, text, given, [result])
    return str(environment.view(result))


def input_of(text: str, *output: int, batch: tuple[int, ...] = ()) -> str:
    environment = Environment()
    given = environment.fresh_shape()
    result = environment.fresh_shape(batch=batch, input=(), output=output)
    say(environment, text, [given], [result])
    return str(environment.view(given))


def test_names_are_sizes_and_numbers_are_sizes() -> None:
    assert output_of("n => n2", (5,)) == "5,2"
    assert output_of("nm; mk => nk", (2, 3), (3, 4)) == "2,4"
    assert output_of("=> 3 7") == "3,7"
    assert input_of("n => n2", 5, 2) == "5"


def test_sizes_may_be_computed() -> None:
    assert output_of("2*n => n", (10,)) == "5"
    assert input_of("2*n => n", 5) == "10"
    assert output_of("a, b => a^b", (2, 3)) == "5"
    assert output_of("2*h => h^1, 2", (10,)) == "6,2"
    assert input_of("2*h => h^1, 2", 6, 2) == "10"
    assert output_of("o<+3*k; k, => o", (10,), (2,)) == "7"


def test_an_ellipsis_is_the_same_axes_in_every_row_of_its_kind() -> None:
    assert input_of("...|n => ...|n", 5, batch=(7, 2)) == "7,2|5"
    assert output_of("...n => ...", (7, 2, 5)) == "7,2"


def test_a_row_that_is_not_written_has_no_axes() -> None:
    environment = Environment()
    given = environment.fresh_shape(batch=(3,), input=(), output=(5,))
    with pytest.raises(ShapeError):
        say(environment, "n => n", [given], [environment.fresh_shape()])


def test_nothing_is_repeated() -> None:
    with pytest.raises(ShapeError):
        output_of("n; n => n", (1,), (5,))
    assert output_of("_; _ => ", (1,), (5,)) == "()"


def test_there_may_be_several_outputs() -> None:
    statement = parse_statement("a; b => a b; 2; b")
    assert (len(statement.inputs), len(statement.outputs)) == (2, 3)
    assert len(parse_statement(" => n; n").inputs) == 0


@pytest.mark.parametrize(
    "text", ["n", "n => n; ", "n+1 => n", "3*n+1 => n", "s*n => n", "o+k => o"]
)
def test_malformed_statements_are_refused(text: str) -> None:
    with pytest.raises((SpecError, ShapeError)):
        output_of(text, (5,))


def test_a_statement_is_for_so_many_inputs_and_outputs() -> None:
    with pytest.raises(SpecError) as error:
        output_of("n; n => n", (5,))
    assert str(error.value) == snapshot("""\
A statement of shapes has one shape for each input.
  found  2 in 'n; n => n', for 1
  where  op\
""")
