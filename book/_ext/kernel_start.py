"""Runs first in each kernel of the book's build (PYTHONSTARTUP): plotly figures become blocks of the page.

Without Jupyter Book 1: any build that starts kernels can set the variable.
"""

from shardlab.explorers import page

page.show_plain_figures()
del page
