"""Commands about runs: starting them, stopping them, looking at them."""
