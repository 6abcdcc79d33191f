"""What plugins share and no engine names: reasons, trials, walks for batches, upkeep, one line."""
