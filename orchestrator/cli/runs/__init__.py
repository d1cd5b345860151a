"""Commands for runs: starting, stopping and inspecting them."""
