"""The exercises on memory, easiest first: memory.<file> names each."""

from . import activation_bytes, checkpoint, model_states

EXERCISES = (
    model_states.EXERCISE,
    activation_bytes.EXERCISE,
    checkpoint.EXERCISE,
)
