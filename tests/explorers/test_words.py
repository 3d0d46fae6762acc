"""Numbers keep to their units in prose, and in the sentences of explorers; what is no prose stays as it is."""

import plotly.graph_objects as go
import pytest

from shardlab.explorers import view, words


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
    ],
)
def test_numbers_of_prose_keep_to_their_units(body: str, kept: str) -> None:
    assert words.together(body) == kept.replace("~", "\N{NO-BREAK SPACE}")


def test_a_sentence_of_an_explorer_keeps_them_in_every_state() -> None:
    shown = view.View(go.Figure(), "It <b>fits</b>: 61 GB of 80 GB (39 %).").plain()
    assert shown["sentence"] == "It <b>fits</b>: 61~GB of 80~GB (39~%).".replace("~", "\N{NO-BREAK SPACE}")
