"""One model on two engines, predicted: a trainer, and a generator that writes the texts it trains on.

Read `hand_over` first, then `cache` and `decode`, what a token costs the generator, `copies`, how
long it writes the texts of a step, `moments`, what a GPU holds that is both, `loop`, a step on the
same GPUs or apart, and how stale its texts are, and `engines`, all of it for a model on a cluster.
"""
