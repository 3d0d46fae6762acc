"""What several exercises of a chapter share: how their answers are run, and what is held against them."""
