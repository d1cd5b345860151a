"""The image encoder of a decoder, and inserting its output among the tokens."""
