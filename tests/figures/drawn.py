"""Look up what a figure draws."""


def data(figure):
    """Return the traces of `figure` by their names in the legend."""
    return {trace.name: trace for trace in figure.data if trace.name}
