"""A page gets the picture, and a notebook its table."""

import pytest

from shardlab.explorers import moving


class Shown(moving.MovingPicture):
    def html(self):
        return moving.moving("shown", "Shown", "picture", self.table())

    def table(self):
        return "<table></table>"


@pytest.mark.parametrize(("static", "picture"), [("1", True), ("", False)])
def test_with_a_kernel_the_table_stands_alone(monkeypatch, static, picture):
    displayed = []
    monkeypatch.setattr(moving, "display", displayed.append)
    monkeypatch.setenv("SHARDLAB_STATIC", static)
    Shown()._ipython_display_()
    (found,) = displayed
    assert ("moving-stage" in found.data) == picture
    assert Shown().table() in found.data
