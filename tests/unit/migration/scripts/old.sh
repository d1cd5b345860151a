#! /bin/bash
# As such scripts were written when activations were still "checkpointed".
WORLD_SIZE=8
DISTRIBUTED_ARGS="--nproc_per_node $WORLD_SIZE --nnodes 1 --node_rank 0 --master_addr localhost --master_port 6000"

python -m torch.distributed.launch $DISTRIBUTED_ARGS \
       pretrain_gpt.py \
       --model-parallel-size 8 \
       --num-layers 72 \
       --hidden-size 3072 \
       --num-attention-heads 32 \
       --batch-size 8 \
       --seq-length 1024 \
       --max-position-embeddings 1024 \
       --train-iters 320000 \
       --lr-decay-iters 320000 \
       --save checkpoints/gpt2_8b \
       --load checkpoints/gpt2_8b \
       --data-path my-gpt2_text_document \
       --vocab-file gpt2-vocab.json \
       --merge-file gpt2-merges.txt \
       --data-impl mmap \
       --split 949,50,1 \
       --distributed-backend nccl \
       --lr 0.00015 \
       --lr-decay-style cosine \
       --min-lr 1.0e-5 \
       --weight-decay 1e-2 \
       --warmup .01 \
       --layernorm-epsilon 1e-6 \
       --checkpoint-activations \
       --checkpoint-num-layers 1 \
       --DDP-impl local \
       --log-interval 100 \
       --save-interval 10000 \
       --eval-interval 1000 \
       --eval-iters 10 \
       --fp16 --attention-softmax-in-fp32
