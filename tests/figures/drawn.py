"""Look up what a figure draws, and what it says in words."""


def data(figure):
    """Return the traces of `figure` by their names in the legend."""
    return {trace.name: trace for trace in figure.data if trace.name}


def lacks(figure):
    """What a figure does not say as it should: `alt` in words, `x` at its axis, nothing in a `title` of its own."""
    layout = figure.layout
    wrong = {"alt": not layout.meta["alt"], "x": not layout.xaxis.title.text, "title": bool(layout.title.text)}
    return [name for name, missed in wrong.items() if missed]
