"""The words of a page are put right: numbers keep to their units, and Korean terms tell their language."""

import pytest
import shardlab_words


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("<p>80 GB</p>", "<p>80~GB</p>"),
        (
            '<dt id="a">axis<a>#</a></dt><dt id="b">축, 1 GB<a>#</a></dt><dd>축</dd>',
            '<dt id="a">axis<a>#</a></dt><dt id="b"><span lang="ko">축, 1~GB</span><a>#</a></dt><dd>축</dd>',
        ),
    ],
)
def test_words_of_prose_are_kept_together_and_told(body: str, kept: str) -> None:
    assert shardlab_words.told(body) == kept.replace("~", "\N{NO-BREAK SPACE}")
