"""Conversations: read from JSON lines, written out by a chat template, stored with a mask of what counts, packed.

`usable` and `pack` of `data.chat.packing` say, from lengths and seed alone, which conversations share a sequence;
plan and training ask the same functions. A sample has `segment_ids`, which number the conversations of a sequence;
with `data.chat.packing` attention gets a mask made from these.
"""
