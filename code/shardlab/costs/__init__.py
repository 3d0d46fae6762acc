"""What a run should take: bytes, FLOPs and seconds, in pure Python. `ranks` does what this room predicts."""
