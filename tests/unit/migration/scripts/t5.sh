#!/bin/bash
T5_ARGS="
    --encoder-num-layers 12 \
    --decoder-num-layers 6 \
    --hidden-size 768 --num-attention-heads 12 --kv-channels 64 --ffn-hidden-size 3072 \
    --encoder-seq-length 512 --decoder-seq-length 128 --max-position-embeddings 512 \
    --micro-batch-size 16 --train-iters 1000 --lr 1e-4 --bf16 --vocab-extra-ids 100 \
    --pipeline-model-parallel-size 3 --pipeline-model-parallel-split-rank 2 \
"
torchrun --nproc_per_node 6 pretrain_t5.py $T5_ARGS --data-path corpus --vocab-file vocab.txt
