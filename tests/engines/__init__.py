"""Tests of the room `wts.engines`."""
