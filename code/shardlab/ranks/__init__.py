"""What a run does: reference implementations on real ranks, over torch.distributed."""
