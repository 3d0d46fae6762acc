"""Numbers keep to their units in prose, and Korean terms tell their language; what is no prose stays as it is."""

import pytest
import shardlab_words


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("<p>80 GB, 5 % and 3.35 TB/s in 2 µs</p>", "<p>80~GB, 5~% and 3.35~TB/s in 2~µs</p>"),
        ("<td>989 TFLOP/s</td>", "<td>989~TFLOP/s</td>"),
        ("<p>with tp = 8 and N = 4, a = b</p>", "<p>with tp~=~8 and N~=~4, a = b</p>"),
        ("<p>8 GPUs, 2 minutes, step 3 sends</p>", "<p>8 GPUs, 2 minutes, step 3 sends</p>"),
        ('<p title="5 s">5 s</p>', '<p title="5 s">5~s</p>'),
        ("<pre>x = 8  # 5 s <b>6 s</b></pre>7 s", "<pre>x = 8  # 5 s <b>6 s</b></pre>7~s"),
        ("<code>tp = 8</code><script>5 s</script><svg><text>5 s</text></svg>",) * 2,
        (r'<span class="math notranslate nohighlight">\(N = 8\)</span>',) * 2,
        (
            '<dt id="a">axis<a>#</a></dt><dt id="b">축, 1 GB<a>#</a></dt><dd>축</dd>',
            '<dt id="a">axis<a>#</a></dt><dt id="b"><span lang="ko">축, 1~GB</span><a>#</a></dt><dd>축</dd>',
        ),
    ],
)
def test_words_of_prose_are_kept_together_and_told(body: str, kept: str) -> None:
    assert shardlab_words.told(body) == kept.replace("~", "\N{NO-BREAK SPACE}")
