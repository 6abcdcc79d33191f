"""The public entry, and the three readings of a walk behind it."""
