"""What a run notes down beside its training."""
