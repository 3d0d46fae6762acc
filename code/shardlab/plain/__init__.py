"""Each method as one plain file, on torch and `comm` alone, to be read whole.

Loops instead of hooks, lists instead of flat buffers, nothing overlapped: naive on purpose, and
never wrong. The lines of code in each docstring train the reference transformer; the tests run
them. Read the files in this order. Beside most stands the engine that does the same, fast.

    data_parallel      ranks.data_parallel      buckets, sent while backward computes
    zero               ranks.zero               flat buffers, layers gathered ahead of their turn
    muon                                        no engine: Megatron-LM's deals whole matrices
    tensor_parallel    ranks.tensor_parallel    one sum for all layers that read the same input
    context_parallel   ranks.context_parallel   any length, fewer key/value heads than ranks
    ring_attention     ranks.context_parallel   the next block travels while this one is used
    linear_attention                            no engine: chunks of tokens need a GPU's kernel
    expert_parallel    ranks.expert_parallel    a token travels once to each rank, or to each node
    pipeline           ranks.pipeline           any schedule, as lists of actions; early receives
    low_precision                              no engine: chips round by themselves
    rounded_linear                             no engine: Transformer Engine has one for GPUs
    generator                                  no engine: vLLM and SGLang are two
    hand_over                                  no engine: slime, verl and NeMo RL have theirs
"""
