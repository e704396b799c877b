"""The list of planted faults; `make cuda-planted` plants them."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.ocannl_cuda.tests.planted_faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[3]
EVERY = [each for faults in FAULTS.values() for each in faults]


@pytest.mark.parametrize("fault", EVERY, ids=lambda fault: fault.name)
def test_a_fault_changes_one_place_of_the_code(fault: Fault) -> None:
    assert (ROOT / fault.path).read_text(encoding="utf-8").count(fault.old) == 1
    assert fault.old != fault.new
    assert (ROOT / fault.tests[0]).is_file()


def test_there_are_faults_of_every_kind() -> None:
    assert [len(faults) for faults in FAULTS.values()] == [11, 26, 25]
