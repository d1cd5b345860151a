"""Many runs of one job: which cells a sweep has, how far they are, and starting them."""
