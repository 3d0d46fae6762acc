"""Reinforcement learning on two engines: some ranks train a model, others generate with it.

Read in this order. `task` is a toy that a checker can mark, and the base model that learns it.
`learning` is the loss. `loop` puts both on ranks, from the files of `plain`.
"""
