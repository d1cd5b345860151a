"""Rules for batches, the schedule, the optimizer, and the training data."""
