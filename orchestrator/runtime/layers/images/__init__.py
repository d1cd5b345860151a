"""What encodes a decoder's images, and puts them among its tokens."""
