"""The presets of published models have as many parameters as the published weights."""

from __future__ import annotations

import pytest

from orchestrator.planning.parameters import parameters
from orchestrator.planning.parameters.counts import Parameters
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    # Of the text models, as transformers builds them.
    "llama4-scout": 107_769_861_120,
    "llama4-maverick": 400_711_848_960,
    "mistral-7b": 7_241_732_096,
    "ministral-8b": 8_019_808_256,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-270m": 268_098_176,
    "gemma3-1b": 999_885_952,
    "gemma3-4b": 3_880_263_168,
    "gemma3-12b": 11_766_034_176,
    "gemma3-27b": 27_009_346_304,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-57b-a14b": 57_408_658_944,
    "qwen3-next-80b-a3b": 79_674_391_296,  # without the layer that predicts a further token
    "pythia-14m": 14_067_712,
    "pythia-31m": 30_494_720,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "gpt-neox-20b": 20_554_567_680,
    "falcon-7b": 6_921_720_704,
    "falcon-11b": 11_102_822_400,
    "falcon-40b": 41_303_293_952,
    "falcon-180b": 178_557_088_768,
    "command-r-35b": 34_980_831_232,
    "command-r-plus-104b": 103_810_674_688,
    "command-r7b": 8_028_033_024,
    "command-a-111b": 111_057_580_032,
    "aya-expanse-8b": 8_028_033_024,
    "aya-expanse-32b": 32_296_476_672,
    "olmoe-1b-7b": 6_919_161_856,
    "granite3.0-1b-a400m": 1_334_628_352,
    "granite3.0-3b-a800m": 3_298_793_472,
    # Without the layer that predicts a further token, and the biases of experts, which are no parameters.
    "glm4.5": 358_337_791_296 - 5_539_962_272 - 89 * 160,
    "glm4.5-air": 110_468_824_832 - 3_616_573_568 - 45 * 128,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200 - 58 * 256,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "phi3-mini": 3_821_079_552,
    "phi3-medium": 13_960_238_080,
    "phi4": 14_659_507_200,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "starcoder2-15b": 15_957_889_024,
    "stablelm-3b": 2_795_443_200,
    "stablelm2-1.6b": 1_644_515_328,
    "stablelm2-12b": 12_143_185_920,
    "minitron-4b": 4_190_509_056,
    "nemotron4-15b": 15_628_775_424,
    "nemotron4-340b": 341_029_195_776,
    "granite3.1-2b": 2_533_531_648,
    "granite3.1-8b": 8_170_848_256,
    "smollm3-3b": 3_075_098_624,
    "glm4-9b-2024": 9_399_951_360,
    "glm4-9b": 9_400_279_040,
    "glm4-32b": 32_566_081_536,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
    "olmo3-7b": 7_298_011_136,
    "olmo3-32b": 32_233_522_176,
    "mamba2-130m": 128_989_632,
    "mamba2-370m": 368_346_624,
    "mamba2-780m": 780_161_280,
    "mamba2-1.3b": 1_343_757_312,
    "mamba2-2.7b": 2_702_599_680,
    "codestral-mamba-7b": 7_285_403_648,
    "nemotron-h-4b": 4_489_223_040,
    "nemotron-h-8b": 8_100_852_736,
    "nemotron-h-47b": 46_791_554_816,
    "nemotron-h-56b": 56_324_350_464,
    "nemotron-nano-9b-v2": 8_888_227_328,
    "nemotron-nano-12b-v2": 12_310_001_152,
    # Without the biases of experts, which are no parameters.
    "nemotron-3-nano-30b-a3b": 31_577_940_288 - 23 * 128,
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "roberta-base": 124_697_433,
    "roberta-large": 355_412_057,
    "modernbert-base": 149_655_232,
    "modernbert-large": 395_881_664,
    "t5-base": 222_903_552,
    "t5-v1.1-base": 247_577_856,
    **{"gemma3-4b-vision": 4_300_079_472, "gemma3-12b-vision": 12_187_325_040, "gemma3-27b-vision": 27_432_406_640},
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen2.5-vl-32b": 33_452_718_336,
    "qwen2.5-vl-72b": 73_410_777_344,
    # The last of CLIP's layers, whose output LLaVA does not take, and the norm behind it are not built.
    "llava1.5-7b": 7_063_427_072 - (12 * 1024**2 + 13 * 1024) - 2 * 1024,
}
"""Elements of the checkpoint's tensors, tied ones once, the vocabulary without padding."""


LEFT_OUT = {
    "mixtral-8x7b": 32 * (8 - 2) * 3 * 4096 * 14336,
    "qwen1.5-moe-a2.7b": 24 * (60 - 4) * 3 * 2048 * 1408,
    "qwen2-57b-a14b": 28 * (64 - 8) * 3 * 3584 * 2560,
    "qwen3-30b-a3b": 48 * (128 - 8) * 3 * 2048 * 768,
    "qwen3-235b-a22b": 94 * (128 - 8) * 3 * 4096 * 1536,
    "qwen3-next-80b-a3b": 48 * (512 - 10) * 3 * 2048 * 512,
    "olmoe-1b-7b": 16 * (64 - 8) * 3 * 2048 * 1024,
    "granite3.0-1b-a400m": 24 * (32 - 8) * 3 * 1024 * 512,
    "granite3.0-3b-a800m": 32 * (40 - 8) * 3 * 1536 * 512,
    "glm4.5": 89 * (160 - 8) * 3 * 5120 * 1536,
    "glm4.5-air": 45 * (128 - 8) * 3 * 4096 * 1408,
    "llama4-scout": 48 * (16 - 1) * 3 * 5120 * 8192,
    "llama4-maverick": 24 * (128 - 1) * 3 * 5120 * 8192,
    "deepseek-v2-lite": 26 * (64 - 6) * 3 * 2048 * 1408,
    "deepseek-v2": 59 * (160 - 6) * 3 * 5120 * 1536,
    "deepseek-v3": 58 * (256 - 8) * 3 * 7168 * 2048,
    "nemotron-3-nano-30b-a3b": 23 * (128 - 6) * 2 * 2688 * 1856,
    "gpt-oss-20b": 24 * (32 - 4) * (3 * 2880 * 2880 + 3 * 2880),
    "gpt-oss-120b": 36 * (128 - 4) * (3 * 2880 * 2880 + 3 * 2880),
}
"""Layers with experts, experts of each that a token does not pass, three matrices of one (two where there is no
gate), and gpt-oss's biases.
"""
EMBEDDING, BOTH = ("embedding",), ("embedding", "output")
ACTIVE: dict[str, tuple[str, tuple[str, ...]]] = {
    **{"mixtral-8x7b": ("12.9", ()), "qwen1.5-moe-a2.7b": ("2.7", ()), "qwen2-57b-a14b": ("14", ())},
    **{"qwen3-235b-a22b": ("22", ()), "olmoe-1b-7b": ("1.3", ()), "granite3.0-3b-a800m": ("0.8", EMBEDDING)},
    **{"granite3.0-1b-a400m": ("0.4", EMBEDDING), "glm4.5": ("32", BOTH), "glm4.5-air": ("12", BOTH)},
    **{"llama4-scout": ("17", ()), "llama4-maverick": ("17", ()), "deepseek-v2": ("21", EMBEDDING)},
    **{"deepseek-v3": ("37", EMBEDDING), "gpt-oss-20b": ("3.61", EMBEDDING), "gpt-oss-120b": ("5.13", EMBEDDING)},
    "nemotron-3-nano-30b-a3b": ("3.6", ()),
}
"""Billions that publishers state, and what these are without. GLM-4.5's report and gpt-oss's model card say so; of the
others it follows from the figures. Those of Qwen3-30B-A3B (3.3 of 3.35) and DeepSeek-V2-Lite (2.4 of 2.45, without its
embedding) are cut off, not rounded, and Qwen3-Next's 3 fits none of these ways but the last.
"""


def counted(name: str) -> tuple[JobSpec, Parameters]:
    sections = "batch: {}, data: {random_tokens: true}, optimizer: {lr: 1e-4}, schedule: {train_iters: 1}"
    job = load_text(f"{{name: x, model: {{preset: {name}}}, {sections}}}").job
    assert job.model.vocab_size is not None
    return job, parameters(job, job.model.vocab_size)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    job, found = counted(name)
    assert job.model.has_experts == (name in LEFT_OUT)
    assert (found.total, found.active) == (PUBLISHED[name], PUBLISHED[name] - LEFT_OUT.get(name, 0))
    if name in ACTIVE:
        figure, without = ACTIVE[name]
        billions = (found.active - sum(getattr(found, part) for part in without)) / 1e9
        assert f"{billions:.{len(figure.partition('.')[2])}f}" == figure


FURTHER = {"glm4.5": 5_539_962_272, "glm4.5-air": 3_616_573_568, "qwen3-next-80b-a3b": 1_650_471_424}
"""Elements of the tensors of the layer that predicts a further token: of GLM-4.5 with the biases of its experts, and
with copies of the embedding and of the output layer. Of Qwen3-Next the files have 81,324,862,720.
"""


@pytest.mark.parametrize("name", FURTHER)
def test_a_layer_of_further_tokens_has_the_published_parameters(name: str) -> None:
    sections = "batch: {}, data: {random_tokens: true}, optimizer: {lr: 1e-4}, schedule: {train_iters: 1}"
    jobs = [
        load_text(f"{{name: x, model: {{preset: {name}, mtp_num_layers: {count}}}, {sections}}}").job
        for count in (0, 1)
    ]
    model = jobs[1].model
    assert model.vocab_size is not None
    without, whole = (parameters(job, model.vocab_size).total for job in jobs)
    beside = 2 * model.vocab_size * model.hidden_size + model.expert_count if name.startswith("glm") else 0
    assert whole - without + beside == FURTHER[name]
