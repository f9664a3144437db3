"""Linear attention: sums over keys in place of a weight for each pair."""
