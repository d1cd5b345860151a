"""What other tools call the fields of a job spec, what they have that is no field here, and what they write for values.

Keys are lower case with underscores.
"""

from __future__ import annotations

from functools import cache

from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled
from orchestrator.spec.schema.shape import declared


@cache
def foreign_names(root: type[Section]) -> dict[str, str]:
    """By name the path of the field (several are separated by ` | `), and after it what to write there, where that is
    not the value of the other tool.
    """
    found: dict[str, str] = {}
    for path, also in declared(AlsoCalled, root):
        for name, written in also.names.items():
            found[name] = f"{found[name]} | {path}{written}" if name in found else f"{path}{written}"
    return found


_EPOCHS = (
    "the length is in steps, samples or tokens, and `plan` says how many epochs that is: write schedule.train_tokens"
)
_SAVE = "checkpoints are in the run's folder, below launch.runs_dir"
_LOAD = "write checkpoint.pretrained; a run continues from its own checkpoints automatically"

NO_SUCH: dict[str, str] = {
    "model.lora.bias": "leave it out: adapters train no biases",
    "model.lora.task_type": "leave it out: the task follows from the model",
    "model.lora.inference_mode": "leave it out: training is implied",
    "model.lora.fan_in_fan_out": "leave it out: the weights' layout is known",
    "model.lora.modules_to_save": "leave it out: only adapters are trained",
    "model.lora.use_rslora": "leave it out, and write alpha times the square root of rank for alpha: the same scale",
    "model.lora.use_dora": "leave it out: adapters are LoRA's two matrices",
    "model.lora.init_lora_weights": "leave it out: one matrix begins random, the other at zero",
    "save": _SAVE,
    **dict.fromkeys(("load", "resume_from", "resume_from_checkpoint"), _LOAD),
    **dict.fromkeys(("epochs", "num_epochs", "max_epochs", "num_train_epochs"), _EPOCHS),
}
"""Fields of other tools that have none here, by the dotted path where they are written (by their name, where that does
not matter), and what to do."""

_QKV = "linear_qkv (queries, keys and values are one matrix)"
_FC1 = "linear_fc1 (into the MLP, with its gate)"

FOREIGN_VALUES: dict[str, str] = {
    # model.lora.target_modules
    **dict.fromkeys(("k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn", "wqkv"), _QKV),
    "q_proj": f"{_QKV}, in latent attention linear_q_proj",
    "o_proj": "linear_proj",
    **{"q_a_proj": "linear_q_down_proj", "q_b_proj": "linear_q_up_proj"},
    **{"kv_a_proj_with_mqa": "linear_kv_down_proj", "kv_b_proj": "linear_kv_up_proj"},
    **dict.fromkeys(("in_proj_qkvz", "in_proj_ba"), "in_proj (both are one matrix)"),
    **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj", "c_fc", "dense_h_to_4h"), _FC1),
    **dict.fromkeys(("down_proj", "dense_4h_to_h"), "linear_fc2"),
    "c_proj": "linear_proj after the attention, linear_fc2 in the MLP",
    "all_linear": "target_modules left out means every matrix of a layer",
    # model.activation
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "swiglu",
    "relu2": "squared_relu",
    # runtime.device, runtime.layers
    "gpu": "cuda",
    "te": "transformer_engine",
    "local": "torch",
    # precision.dtype
    **dict.fromkeys(("bfloat16", "torch.bfloat16", "bf16_mixed", "bf16_true"), "bf16"),
    **dict.fromkeys(("float16", "torch.float16", "half", "16_mixed", "16_true"), "fp16"),
    **dict.fromkeys(("float32", "torch.float32", "float", "32_true"), "fp32"),
    # model.position_embedding_type, schedule.lr_decay_style
    "rotary": "rope",
    "cosine_annealing": "cosine",
    # data.tokenizer.type, as a migration from Megatron-LM maps them
    "gpt2bpetokenizer": "gpt2_bpe",
    "huggingfacetokenizer": "huggingface",
    **dict.fromkeys(("sentencepiecetokenizer", "gptsentencepiecetokenizer", "llama2tokenizer"), "sentencepiece"),
    **dict.fromkeys(("bertwordpiecelowercase", "bertwordpiececase"), "wordpiece"),
}
"""Values of other tools, in lower case with underscores, and what to write for them."""
