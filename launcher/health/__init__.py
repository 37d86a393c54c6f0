"""Rules over the metrics of any training log: what is wrong with a run, since when, and what helps."""
