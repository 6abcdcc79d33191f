"""Tests of the room `wts.bench`."""
