"""Weights That Stay: a drafter's serial head walked in one GPU launch."""
