"""Runs first in each kernel of the book's build (PYTHONSTARTUP): plotly figures become blocks of the page."""

from shardlab.explorers import page

page.show_plain_figures()
del page
