"""Solutions of the exercises on pipeline parallelism."""

from itertools import pairwise


def my_bubble(num_stages, num_microbatches, num_chunks):
    waiting, computing = num_stages - 1, num_microbatches * num_chunks
    return waiting / computing, waiting / (waiting + computing)


def my_eager(stage, microbatches, samples):
    for number, (inputs, targets) in enumerate(microbatches):
        stage.forward(inputs, targets, len(inputs) / samples)
        if number >= 2 * stage.after:
            stage.backward()
    while stage.kept:
        stage.backward()


def my_cut(seconds, nbytes, num_stages, memory):
    n = len(seconds)
    best = {0: (0, [0])}
    for _ in range(num_stages):
        row = {}
        for end in range(1, n + 1):
            ways = [
                (max(slowest, sum(seconds[start:end])), [*edges, end])
                for start, (slowest, edges) in best.items()
                if start < end and sum(nbytes[start:end]) <= memory
            ]
            if ways:
                row[end] = min(ways)
        best = row
    return [b - a for a, b in pairwise(best[n][1])] if n in best else None
