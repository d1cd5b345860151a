"""Conversations: several to a sequence or one, with the loss over the assistant's turns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.megatron_dataset import MegatronDataset

from orchestrator.data.chat.conversation_packing import COUNTS, PATCH, loss_mask_prefix, pack, usable
from orchestrator.data.chat.native_images import images_in
from orchestrator.data.chat.stored_images import has_images, images_prefix
from orchestrator.data.indexed_dataset.header import bin_path, read_index
from orchestrator.spec.sections.chat import ChatSpec
from orchestrator.spec.vision import VisionSpec


@dataclass
class ChatDatasetConfig(BlendedMegatronDatasetConfig):
    """megatron-core's, and how conversations become sequences."""

    packing: bool = True
    long_conversations: str = "truncate"
    vision: VisionSpec | None = None

    @property
    def image_size(self) -> int:
        """Pixels of an image's side; of a model with `vision`."""
        assert self.vision is not None, "asked only where there are images"
        return self.vision.image_size

    @property
    def images_per_sequence(self) -> int:
        """Images that a sequence may have; of a model with `vision`."""
        assert self.vision is not None, "asked only where there are images"
        return self.vision.images_per_sequence


class ChatDataset(MegatronDataset):
    """Sequences of whole conversations; every epoch has the same ones, in an order of its own.

    Item i holds `tokens`, `labels`, `position_ids`, `segment_ids` (which conversation of the sequence a token is of;
    what fills it up is one too), int64, and `loss_mask`, float32, each [s].
    """

    is_endless = True
    """Whether there are items beyond its length, in further epochs."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._mask = IndexedDataset(str(loss_mask_prefix(Path(self.dataset_path))), multimodal=False, mmap=True)
        self._starts, self._members = self._packs()
        self._order: tuple[int, Any] = (-1, None)

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: IndexedDataset) -> int:
        return len(low_level_dataset.sequence_lengths)

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: ChatDatasetConfig) -> IndexedDataset:
        return IndexedDataset(dataset_path, multimodal=False, mmap=True)

    @staticmethod
    def _key_config_attributes() -> list[str]:
        return [*MegatronDataset._key_config_attributes(), "packing", "long_conversations"]

    @property
    def sequences(self) -> int:
        """Sequences of one epoch."""
        return len(self._starts) - 1

    def __len__(self) -> int:
        return max(self.num_samples or 0, self.sequences)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        length = self.config.sequence_length
        names = ("tokens", "labels", "position_ids", "segment_ids")
        fields: dict[str, Any] = {name: np.zeros(length, dtype=np.int64) for name in names}
        fields["loss_mask"] = np.zeros(length, dtype=np.float32)
        start = number = 0
        for member in self._conversations(idx):
            ids = self.dataset[member][: length + 1]
            stop = start + len(ids) - 1
            fields["tokens"][start:stop], fields["labels"][start:stop] = ids[:-1], ids[1:]
            fields["loss_mask"][start:stop] = self._mask[member][1 : len(ids)] == COUNTS
            fields["position_ids"][start:stop] = np.arange(len(ids) - 1)
            fields["segment_ids"][start:stop] = number
            start, number = stop, number + 1
        fields["position_ids"][start:] = np.arange(length - start)
        fields["segment_ids"][start:] = number
        return fields

    def _conversations(self, idx: int) -> Any:
        """The numbers of those that item `idx` holds."""
        which = self._sequence(*divmod(int(idx), self.sequences))
        return self._members[self._starts[which] : self._starts[which + 1]]

    def _sequence(self, epoch: int, place: int) -> int:
        """What stands at a place of an epoch, whose order is kept until another is asked for."""
        if self._order[0] != epoch:
            random = np.random.RandomState([self.config.random_seed % 2**32, epoch])
            self._order = (epoch, random.permutation(self.sequences))
        return int(self._order[1][place])

    def _packs(self) -> tuple[Any, Any]:
        """Where the conversations of each sequence begin, [sequences + 1], and their numbers in the data set."""
        path = Path(self.config.path_to_cache, f"{self.unique_description_hash}-ChatDataset-packs.npy")
        if not path.exists():
            _save(path, self._pack())
        stored = np.load(path, mmap_mode="r")
        count = int(stored[0])
        return stored[1 : count + 2], stored[count + 2 :]

    def _pack(self) -> Any:
        """The number of sequences, where the conversations of each begin, and the conversations, in one array."""
        config, first = self.config, int(self.indices[0])
        chat = ChatSpec(packing=config.packing, long_conversations=config.long_conversations)
        header = read_index(Path(self.dataset_path))
        stop = int(self.indices[-1]) + 1
        lengths = usable(header, first, stop, chat, config.sequence_length, config.vision).lengths
        packs = pack(lengths, config.sequence_length, config.random_seed, config.packing)
        starts = np.cumsum([0, *(len(members) for members in packs)])
        members = [first + member for members in packs for member in members]
        return np.concatenate([[len(packs)], starts, members]).astype(np.int64)


class ImageChatDataset(ChatDataset):
    """Conversations with images, one to a sequence.

    Item i holds beside the others `images`, uint8 [images_per_sequence, 3, size, size], black where there are fewer,
    and `image_mask`, float32 [s], 1 where a token is a patch: the k-th is the k-th patch of the images in their order,
    row by row. Of an image that is cut off some patches are missing.

    Of images of any size item i holds `grids`, int64 [images_per_sequence, 2], the rows and columns of patches of each,
    0 where there are fewer, and `images` are as many numbers, which begin with the pixels [3, rows, columns] of one
    image after the other.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        path, prefix = Path(self.dataset_path), images_prefix(Path(self.dataset_path))
        is_there = has_images(path) and bin_path(prefix).stat().st_size > 0  # nothing cannot be mapped
        self._images = IndexedDataset(str(prefix), multimodal=False, mmap=True) if is_there else None

    @staticmethod
    def _key_config_attributes() -> list[str]:
        return [*ChatDataset._key_config_attributes(), "image_size", "images_per_sequence"]

    def __getitem__(self, idx: int) -> dict[str, Any]:
        fields = super().__getitem__(idx)
        config, (member,) = self.config, self._conversations(idx)
        marks = self._mask[member][: config.sequence_length + 1][:-1]
        fields["image_mask"] = np.zeros(config.sequence_length, dtype=np.float32)
        fields["image_mask"][: len(marks)] = marks == PATCH
        images = np.zeros((config.images_per_sequence, 3, config.image_size, config.image_size), np.uint8)
        pixels = np.zeros(0, np.uint8) if self._images is None else self._images[member]
        if not config.vision.kind.keeps_shape:
            images.reshape(-1)[: len(pixels)] = pixels
            return {**fields, "images": images}
        fields["grids"] = np.zeros((config.images_per_sequence, 2), np.int64)
        flat, filled = images.reshape(-1), 0
        for place, (rows, columns, begin, end) in enumerate(images_in(pixels.tobytes(), config.vision)):
            fields["grids"][place] = rows // config.vision.patch_size, columns // config.vision.patch_size
            flat[filled : filled + end - begin] = pixels[begin:end]
            filled += end - begin
        return {**fields, "images": flat}


def _save(path: Path, array: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(draft, "wb") as file:
        np.save(file, array)
    os.replace(draft, path)


def dataset(
    chat: ChatSpec, vision: VisionSpec | None, settings: dict[str, Any]
) -> tuple[type[ChatDataset], ChatDatasetConfig]:
    """`ChatDataset` says what an item holds, `ImageChatDataset` what that of a model with `vision` does."""
    kind = ChatDataset if vision is None else ImageChatDataset
    long = chat.long_conversations
    return kind, ChatDatasetConfig(**settings, packing=chat.packing, long_conversations=long, vision=vision)
