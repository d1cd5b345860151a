#!/bin/bash
torchrun --nproc_per_node 8 pretrain_bert.py \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
    --seq-length 512 --max-position-embeddings 512 --bert-no-binary-head --mask-prob 0.2 \
    --micro-batch-size 4 --global-batch-size 32 --train-iters 100000 \
    --lr 1e-4 --lr-decay-iters 99000 --min-lr 1e-5 --lr-warmup-fraction .01 --weight-decay 1e-2 \
    --data-path corpus_text_sentence --vocab-file bert-vocab.txt --split 949,50,1 --fp16
