"""Engines that draft with walks: what they share, and a plugin for each."""
