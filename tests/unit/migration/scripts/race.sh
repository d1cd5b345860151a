#!/bin/bash
# Fine-tuning on RACE, as Megatron-LM's examples of the older releases start it.
WORLD_SIZE=8

TRAIN_DATA="data/RACE/train/middle"
VALID_DATA="data/RACE/dev/middle \
            data/RACE/dev/high"

python -m torch.distributed.launch --nproc_per_node $WORLD_SIZE ./tasks/main.py \
    --task RACE --seed 4321 \
    --train-data $TRAIN_DATA --valid-data $VALID_DATA \
    --tokenizer-type BertWordPieceLowerCase --vocab-file bert-vocab.txt \
    --epochs 3 --keep-last \
    --model-parallel-size 1 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
    --batch-size 4 --checkpoint-activations --lr 1.0e-5 --lr-decay-style linear --warmup 0.06 \
    --seq-length 512 --max-position-embeddings 512 \
    --eval-interval 100 --eval-iters 50 --weight-decay 1.0e-1 --fp16
