"""Search for the fastest layout of a model on a cluster.

`plans` defines questions and answers, `planner` searches, with the `tables` that plans share, and
`remedies` names what to change where nothing fits.
`flags` writes a plan as the options of three programs, and `formulas` sets the chapters' formulas
beside the terms of a step.
"""
