"""Tests of the room `wts.cli`."""
