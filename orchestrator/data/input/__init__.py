"""Raw input: files of text and JSON, compressed or not, their documents and sentences, and images."""
