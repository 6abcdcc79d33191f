"""Tests of the room `wts.heads`."""
