"""Sliders over costs and figures, alive with a kernel and without one: `explorer`. And questions: `guess`."""
