"""Plugins whose exceptions, attributes and texts are hostile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.base.errors import BackendNotFoundError, OcannlError

Install = Callable[..., Path]


class Odd(BaseException):
    """No `Exception`, as interruptions of some libraries are."""


class Mute(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise Odd


class MuteOdd(Odd, Mute): ...


@pytest.mark.parametrize("error", ["Odd", "Mute", "MuteOdd"])
@pytest.mark.parametrize("place", ["import", "targets", "version", "attributes"])
def test_no_exception_of_a_plugin_stops_the_others(
    install: Install, place: str, error: str
) -> None:
    default = {
        "version": "return (1, 0)",
        "attributes": "raise AttributeError",
        "targets": "return 3",
    }
    body = {**default, place: f"raise {error}()"}
    code = f"""
        from ocannl_core.backend.specs import hookimpl
        from tests.core.backend.test_hostile_plugins import Mute, MuteOdd, Odd

        class Plugin:
            @property
            def OCANNL_API(self):
                {body["version"]}

            def __getattr__(self, name):
                {body["attributes"]}

            @hookimpl
            def ocannl_targets(self):
                {body["targets"]}

        plugin = Plugin()
    """
    install(
        "hostile", code + f"\n        raise {error}()" * (place == "import"), attribute="plugin"
    )
    with pytest.warns(RuntimeWarning, match="hostile"):
        oc.Context()
    assert str(manager.backend_entries())


def test_texts_of_plugins_do_not_act_upon_a_terminal(install: Install) -> None:
    clear = "\x1b[2J\x1b]0;title\x07"
    code = f"""
        from ocannl_core.backend.specs import hookimpl
        from ocannl_core.backend.protocols import TargetReport
        from ocannl_core.ir.target import Target
        OCANNL_API = (1, 0)

        @hookimpl
        def ocannl_targets():
            raise ValueError({clear!r})
    """
    install("hostile", code)
    with pytest.warns(RuntimeWarning) as caught:
        oc.Context()
    with pytest.raises(BackendNotFoundError) as error:
        manager.select("hostile")
    texts = [str(error.value), *(str(each.message) for each in caught)]
    assert "\\x1b[2J" in texts[0]
    assert not any("\x1b" in text or "\x07" in text for text in texts)
    assert "\x1b" not in str(OcannlError("rule", found="a\x1b[2Jb\nc", where="\u202e", fix="\r"))
