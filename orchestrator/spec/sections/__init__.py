"""The sections of a job, except the model's."""
