"""Data parallelism, predicted: its messages behind backward, and what more ranks gain.

Read `overlap` first, which hides messages behind backward as `step` counts them, then `scaling`,
many steps. `machines` has networks and examples to try.
"""
