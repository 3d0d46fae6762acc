"""Reference solutions, in files as a learner would hand them in. They stand in no page of the book."""
