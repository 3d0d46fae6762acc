"""What has changed leads to the tests that would notice."""

import pytest

from tools import touched

from .test_house import MODULES, PACKAGE, ROOT


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("code/shardlab/plain/zero.py", ["tests/plain/test_zero.py"]),
        ("code/shardlab/launch/peers.py", ["tests/launch/test_peers.py"]),
        ("code/shardlab/launch/join.py", ["tests/launch/test_run.py"]),
        ("code/shardlab/costs/facts/nodes.py", ["tests/costs/facts/test_network.py"]),
        ("book/memory.md", [f"{touched.CELLS}[memory]"]),
        ("book/glossary.md", []),
        ("tests/plain/test_zero.py", ["tests/plain/test_zero.py"]),
        ("README.md", []),
    ],
)
def test_a_changed_file_has_its_tests(changed, tests):
    assert touched.tests_of(ROOT / changed) == tests


def test_what_is_not_mirrored_is_tested_with_its_folder_or_by_those_that_import_it():
    assert touched.tests_of(PACKAGE / "schedules" / "classic.py") == ["tests/test_schedules.py"]
    assert "tests/exercises/test_checker.py" in touched.tests_of(PACKAGE / "exercises" / "checker.py")


def test_every_module_has_tests_that_are_there():
    """But what exercises share with their frames, of which each exercise reads its own: `make test-all` has all."""
    chosen = {path: touched.tests_of(path) for path in MODULES}
    without = [path.relative_to(PACKAGE) for path, tests in chosen.items() if not tests]
    assert {path.parts[0] for path in without} <= {"exercises"}
    assert len(without) < len(MODULES) / 50
    assert all((ROOT / test).is_file() for tests in chosen.values() for test in tests)
    file, test = touched.CELLS.split("::")
    assert f"def {test}(" in (ROOT / file).read_text()
