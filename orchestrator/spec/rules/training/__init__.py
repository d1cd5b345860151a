"""Rules of batches, the schedule, the optimizer, and what is trained on."""
