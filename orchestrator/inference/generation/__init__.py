"""From prompts to new tokens: passes with a cache, sampling, beam search, and the loop over tokens."""
