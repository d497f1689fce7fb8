# mypy: disable-error-code="no-untyped-call"
"""Architectures of Hugging Face transformers, small and with random weights: watching doesn't change a bit."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn

import hookcore
from hookcore.capsules import record, replay
from hookcore.records import TENSOR_KINDS
from tests.harness import assert_stats, digest, process_state, random_state, read_step, reference_stats, seed_all, watch
from tests.twin import TwinHooks

transformers = import_module("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STEPS: Final = 3
VOCABULARY: Final = 48

# The names of sizes in these configurations. Each configuration takes those that it knows.
SMALL: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embedding_size": 16,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "num_key_value_heads": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "head_dim": 8, "d_kv": 8,
    "intermediate_size": 64, "n_inner": 64, "ffn_dim": 64, "hidden_dim": 64, "d_ff": 64, "ffn_hidden_size": 64,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64, "n_positions": 64,
    "word_embed_proj_dim": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0,
    "image_size": 16, "patch_size": 4, "num_channels": 3, "state_size": 4, "attn_implementation": "eager",
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """A model class, its configuration class, and other requirements."""

    name: str
    model: str
    config: str
    inputs: str = "language"
    sizes: dict[str, Any] | None = None


def _language(name: str, model: str = "ForCausalLM", **sizes: Any) -> Architecture:
    return Architecture(name, f"{name}{model}", f"{name}Config", "language", sizes)


ARCHITECTURES: Final = [
    _language("Llama"),
    _language("Mistral"),
    _language("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    _language("Qwen2"),
    _language("Gemma"),
    _language("GPT2", "LMHeadModel"),
    _language("GPTNeoX", rotary_pct=1.0),
    _language("OPT", do_layer_norm_before=True),
    _language("Bloom"),
    _language("Phi"),
    _language("Falcon"),
    _language("Mamba", expand=2),
    _language("Bert", "ForMaskedLM"),
    _language("Roberta", "ForMaskedLM"),
    _language("DistilBert", "ForMaskedLM"),
    _language("Albert", "ForMaskedLM"),
    _language("Electra", "ForMaskedLM"),
    _language("DebertaV2", "ForMaskedLM", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    _language("T5", "ForConditionalGeneration", decoder_start_token_id=0),
    _language("Bart", "ForConditionalGeneration"),
    Architecture("ViT", "ViTForImageClassification", "ViTConfig", "images"),
    Architecture(
        "Swin", "SwinForImageClassification", "SwinConfig", "images",
        {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 2},
    ),
    Architecture(
        "ConvNext", "ConvNextForImageClassification", "ConvNextConfig", "images",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 2},
    ),
    Architecture(
        "Wav2Vec2", "Wav2Vec2ForCTC", "Wav2Vec2Config", "sound",
        {"conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2,
         "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0},
    ),
    Architecture("CLIP", "CLIPModel", "CLIPConfig", "both"),
]  # fmt: skip


def _sizes_for(config: type, sizes: dict[str, Any]) -> dict[str, Any]:
    known = {name for base in config.__mro__ for name in inspect.get_annotations(base)}
    known |= set(inspect.signature(config).parameters)
    return {name: value for name, value in (SMALL | sizes).items() if name in known or name in sizes}


def _config_of(architecture: Architecture) -> Any:
    config = getattr(transformers, architecture.config)
    if architecture.inputs == "both":
        text = _sizes_for(transformers.CLIPTextConfig, {})
        vision = _sizes_for(transformers.CLIPVisionConfig, {})
        return config(text_config=text, vision_config=vision, projection_dim=16)
    return config(**_sizes_for(config, architecture.sizes or {}))


def _inputs_of(architecture: Architecture) -> dict[str, Any]:
    tokens = torch.randint(3, VOCABULARY, (2, 8))
    images = torch.randn(2, 3, 16, 16)
    inputs: dict[str, Callable[[], dict[str, Any]]] = {
        "language": lambda: {"input_ids": tokens, "labels": tokens},
        "images": lambda: {"pixel_values": images, "labels": torch.tensor([0, 1])},
        "sound": lambda: {"input_values": torch.randn(2, 800), "labels": torch.randint(3, VOCABULARY, (2, 5))},
        "both": lambda: {"input_ids": tokens, "pixel_values": images, "return_loss": True},
    }
    return inputs[architecture.inputs]()


def _build(architecture: Architecture) -> nn.Module:
    model: nn.Module = getattr(transformers, architecture.model)(_config_of(architecture))
    return model.train()


def _train(architecture: Architecture, way: str | None) -> tuple[list[dict[str, str]], Any]:
    seed_all()
    model = _build(architecture)
    inputs, optimizer = _inputs_of(architecture), torch.optim.AdamW(model.parameters(), lr=1e-3)
    watcher = None if way is None else WAYS[way](model)
    steps, coverage = [], []
    with watcher or contextlib.nullcontext():
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(**inputs).loss
            loss.backward()
            optimizer.step()
            named = list(model.named_parameters())
            steps.append(
                {
                    "loss": digest(loss.detach()),
                    "gradients": digest([parameter.grad for _, parameter in named]),
                    "parameters": digest([parameter.detach() for _, parameter in named]),
                    "random": random_state(),
                }
            )
        if watcher is not None:
            assert watcher.flush(60)
            assert watcher.current_step == STEPS
            assert watcher.errors == []
            coverage = watcher.coverage()
    return steps, coverage


WAYS: Final[dict[str, Callable[[nn.Module], hookcore.Watcher]]] = {
    "attached": lambda model: watch(model),
    "all kinds": lambda model: watch(model, kinds=TENSOR_KINDS),
    "per module": lambda model: watch(model, attach="module"),
    "discovered": lambda model: watch(),
}


@functools.cache
def _unwatched(name: str) -> list[dict[str, str]]:
    return _train(_by_name(name), None)[0]


def _by_name(name: str) -> Architecture:
    return next(architecture for architecture in ARCHITECTURES if architecture.name == name)


NAMES: Final = [architecture.name for architecture in ARCHITECTURES]


@pytest.mark.rota("name", of="transformers")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_a_watched_transformer_computes_the_same_bits(name: str, way: str) -> None:
    before = process_state()
    expected, (seen, coverage) = _unwatched(name), _train(_by_name(name), way)
    assert seen == expected
    assert process_state() == before
    root = f"{type(_build(_by_name(name))).__name__}/" if way == "discovered" else ""
    captured = {item.path.removeprefix(root) if item.path != root[:-1] else "" for item in coverage if item.captured}
    assert captured == _modules_that_return_tensors(name)
    assert all(item.reason for item in coverage if not item.captured)


@functools.cache
def _modules_that_return_tensors(name: str) -> set[str]:
    seed_all()
    model, seen = _build(_by_name(name)), set()

    def saw(path: str, output: Any) -> None:
        if any(isinstance(leaf, torch.Tensor) for leaf in torch.utils._pytree.tree_leaves(output)):
            seen.add(path)

    for path, module in model.named_modules():
        module.register_forward_hook(lambda module, args, output, path=path: saw(path, output))
    model(**_inputs_of(_by_name(name)))
    return seen


def _twin_of(name: str) -> Any:
    seed_all()
    model = _build(_by_name(name))
    inputs, hooks = _inputs_of(_by_name(name)), TwinHooks(model)
    model(**inputs).loss.backward()
    return hooks.close()


@pytest.mark.rota("name", of="transformers")
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients_of_a_transformer_are_those_of_a_twin(name: str) -> None:
    other, twin = _twin_of(name), _twin_of(name)
    seed_all()
    model = _build(_by_name(name))
    inputs = _inputs_of(_by_name(name))
    with watch(model, kinds={"output", "output_grad"}) as watcher:
        model(**inputs).loss.backward()
        watcher.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
    assert {key for key in stats if key[1] == "output"} == set(twin.outputs)
    # A tensor that a module uses and also returns has a gradient; its clone, which the twin returns, has none.
    passed_on = {key for key in stats if key[1] == "output_grad"} - set(twin.gradients)
    assert set(twin.gradients) <= set(stats)
    assert all(index for _, _, index, _ in passed_on)
    used_on_the_way = {"T5": "1"}.get(name)  # the position bias, which every layer uses and passes on
    for key, parts in [*twin.outputs.items(), *twin.gradients.items()]:
        if key[1:3] == ("output_grad", used_on_the_way):
            continue
        again = other.outputs.get(key) or other.gradients[key]
        if all(map(torch.equal, parts, again)):
            # The twin's clones are separate nodes, so gradients may be summed in another order.
            assert_stats(stats[key], parts, key, rel=1e-4 if key[1] == "output_grad" else 2e-6)
        else:  # torch itself sometimes rounds differently, which a difference of large numbers reveals
            rms = reference_stats(parts)["rms"]
            assert stats[key]["rms"] == pytest.approx(rms, rel=1e-3), key


@pytest.mark.rota("name", of="transformers")
@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_a_transformer_is_replayed_to_the_bit(name: str, tmp_path: Path) -> None:
    seed_all()
    model = _build(_by_name(name))
    with record(model, tmp_path / "step.capsule", "asked") as recording:
        model(**_inputs_of(_by_name(name))).loss.backward()
        recording.write()
    if name == "Wav2Vec2":  # its convolution is parametrized, and torch can't pickle that
        assert "state_dict" in recording.failure
        return
    assert recording.written is not None, recording.failure
    found = replay(tmp_path / "step.capsule")
    assert found.exact, found.differences
    assert not found.error
    assert found.culprit is None


def test_there_are_at_least_twenty_architectures() -> None:
    assert len(set(NAMES)) >= 20


def test_an_unwatched_transformer_computes_the_same_bits_twice() -> None:
    assert _train(_by_name("Bert"), None)[0] == _unwatched("Bert")
