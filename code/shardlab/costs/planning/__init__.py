"""Behind `step` and `planner`: the parts of a step and of a plan, and what to change when a plan does not fit."""
