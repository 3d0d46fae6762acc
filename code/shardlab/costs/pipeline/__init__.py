"""Pipelines, predicted: `bubble` has the closed forms, and `timeline` plays a schedule.

`stage_costs` lists what stages are made of, as `costs.step` times it and `costs.memory` counts it,
and `balance` cuts layers into stages of equal duration.
"""
