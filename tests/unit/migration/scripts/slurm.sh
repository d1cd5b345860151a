#!/bin/bash
#SBATCH --job-name=llama-8b
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --time=1-12:00:00
#SBATCH -p large -A project42
#SBATCH --output=logs/%x-%j.out
#SBATCH --constraint=nvlink
#SBATCH --exclusive

module load cuda nccl
source /opt/site/environment.sh

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29500
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_IB_HCA=mlx5
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export WANDB_API_KEY=0123456789abcdef
export HF_HOME=$SCRATCH/hf

if [ -d /lustre/tokens ]; then
    DATA_ROOT=/lustre/tokens
else
    DATA_ROOT=/data/tokens
fi

OPTIONS=" \
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
    --ffn-hidden-size 14336 --group-query-attention --num-query-groups 8 \
    --seq-length 8192 --max-position-embeddings 8192 \
    --position-embedding-type rope --rotary-base 500000 --no-rope-fusion \
    --swiglu --normalization RMSNorm --disable-bias-linear \
    --untie-embeddings-and-output-weights \
    --attention-dropout 0.0 --hidden-dropout 0.0 \
    --tensor-model-parallel-size 4 --context-parallel-size 1 --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 1 --global-batch-size 512 \
    --rampup-batch-size 64 64 1000000 \
    --train-samples 2000000 --lr-decay-samples 1900000 --lr-warmup-samples 10000 \
    --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine \
    --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 \
    --init-method-std 0.008 \
    --bf16 --fp8-format hybrid --recompute-activations \
    --data-path $DATA_ROOT/web \
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model $SCRATCH/llama3 \
    --split 99,1,0 --seed 42 --num-workers 4 \
    --save /lustre/checkpoints/llama --load /lustre/checkpoints/llama \
    --save-interval 500 --save-retain-interval 5000 --async-save \
    --eval-interval 1000 --eval-iters 50 --log-interval 1 \
    --wandb-project pretraining --wandb-exp-name llama-8b-first \
    --distributed-timeout-minutes 60 --exit-signal-handler"

LAUNCH="torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES --node_rank \$SLURM_NODEID \
    --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT"

srun -l --kill-on-bad-exit=1 --container-image=images/pytorch.sqsh bash -c "$LAUNCH pretrain_gpt.py $OPTIONS"
