"""Conversations: read from JSON lines, rendered by a chat template, stored with a loss mask, packed.

`usable` and `pack` of `data.chat.packing` determine, from lengths and seed alone, which conversations share a sequence;
plan and training call the same functions. `segment_ids` of a sample number the conversations of a sequence; with
`data.chat.packing`, the attention mask is made from them.
"""
