"""Each method as one plain file, on `torch` and `comm` alone, to be read whole.

Loops instead of hooks, lists instead of flat buffers, nothing overlapped: slow on purpose, and
right. Each trains the reference transformer to what one process gets. Read them in this order; the
engine beside each does the same, fast.

    data_parallel    ranks.data_parallel      buckets, sent while backward computes
    zero             ranks.zero               flat buffers, layers gathered ahead of their turn
    tensor_parallel  ranks.tensor_parallel    one message where several layers read the same input
    pipeline         ranks.pipeline           any schedule, as one list of actions
"""
