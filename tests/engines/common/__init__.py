"""Tests of what plugins share."""
