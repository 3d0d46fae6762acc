"""A new folder is whole, or it is not there; nobody else's is touched."""

from pathlib import Path

import pytest

from shardlab.files import project, writing


def fill(folder: Path, name: str, error: BaseException) -> None:
    with writing.new_folder(folder):
        (folder / name).touch()
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, KeyError])
def test_what_is_interrupted_leaves_nothing_and_goes_on(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error):
        fill(tmp_path / "a" / "b", "half", error())
    assert not list(tmp_path.iterdir())


def test_what_somebody_else_has_put_above_it_stays(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        fill(tmp_path / "a" / "b", "../theirs", OSError())
    assert [each.name for each in (tmp_path / "a").iterdir()] == ["theirs"]


def test_no_folder_is_made_inside_the_package() -> None:
    place = project.PACKAGE / "plain" / "new"
    with pytest.raises(ValueError, match="must be a new folder: it lies inside the package"), writing.new_folder(place):
        pass
    assert not place.exists()
