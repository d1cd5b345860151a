"""Commands that keep runs in order: labels, and deleting. None of them starts or touches a training."""
