"""What a run does: every method as reference code on real ranks, over torch.distributed.

Read in this order:

1. `shardlab.comm`: the verbs with which ranks communicate. All files here call these.
2. `shardlab.plain`: each method in one short file.
3. `data_parallel/`, `zero/`, `tensor_parallel/`, `context_parallel/`, `expert_parallel/`,
   `pipeline/`: the engines, which compute the same; `bench/` holds all but context and expert
   parallelism to the speed of torch's own. Each `__init__` gives the order in which to read its
   files.
4. `train`: all methods in one step, each in its own group of a `mesh`.
5. `generation/`: ranks that train, and others that generate what they train on.

Beside them stand what methods share (`agreement`, `backward`), the model and its data
(`transformer`, `mixture`, `text`), and the folders `collectives/`, `memory/`, `checkpoint/`,
`operations/`, `observe/` and `players/`.
"""
