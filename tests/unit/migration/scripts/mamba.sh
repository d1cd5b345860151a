#!/bin/bash
# A small hybrid, as Megatron-LM's examples start one.
ARGS="
    --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec
    --is-hybrid-model --num-layers 6 --hybrid-layer-pattern M-M*-M
    --mamba-state-dim 16 --mamba-num-groups 4
    --hidden-size 256 --num-attention-heads 4 --group-query-attention --num-query-groups 2
    --squared-relu --normalization RMSNorm --disable-bias-linear --position-embedding-type none
    --attention-dropout 0.0 --hidden-dropout 0.0 --untie-embeddings-and-output-weights
    --seq-length 512 --max-position-embeddings 512
    --micro-batch-size 1 --global-batch-size 8 --train-iters 100 --lr 1e-4 --lr-decay-style cosine
    --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt --data-path corpus
    --bf16
"
torchrun --nproc-per-node 1 pretrain_mamba.py $ARGS
