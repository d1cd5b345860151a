"""What files of a model of transformers that sees images say of them: of their encoder, and of its processor."""
