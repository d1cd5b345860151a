"""What a training draws: data sets, blends, sample indices, and the position in them."""
