"""Places of the parameters of models in checkpoints of PyTorch and Hugging Face, for `oc.load`.

oc.load("model.safetensors", ctx, model, names=oc.nn.gpt2_names, ignore=["*.attn.bias"])
"""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.data.checkpoints.stored import Stored

_COLUMNS = (1, 0)
"""The axes of a matrix with a column for each output, as GPT-2 stores them."""

_GPT2: Mapping[str, Stored] = {
    "tokens.table": Stored("wte.weight"),
    "positions.embedding.table": Stored("wpe.weight"),
    "decoder.norm.gamma": Stored("ln_f.weight"),
    "decoder.norm.beta": Stored("ln_f.bias"),
    **{
        f"attention.w_{each}": Stored(
            "h.{layer}.attn.c_attn.weight", part=(number, 3), axis=1, transpose=_COLUMNS
        )
        for number, each in enumerate("qkv")
    },
    **{
        f"attention.b_{each}": Stored("h.{layer}.attn.c_attn.bias", part=(number, 3))
        for number, each in enumerate("qkv")
    },
    "attention.w_o": Stored("h.{layer}.attn.c_proj.weight", transpose=_COLUMNS),
    "attention.b_o": Stored("h.{layer}.attn.c_proj.bias"),
    "linear1.weight": Stored("h.{layer}.mlp.c_fc.weight", transpose=_COLUMNS),
    "linear1.bias": Stored("h.{layer}.mlp.c_fc.bias"),
    "linear2.weight": Stored("h.{layer}.mlp.c_proj.weight", transpose=_COLUMNS),
    "linear2.bias": Stored("h.{layer}.mlp.c_proj.bias"),
    **{
        f"norm{number}.{ours}": Stored(f"h.{{layer}}.ln_{number}.{theirs}")
        for number in (1, 2)
        for ours, theirs in (("gamma", "weight"), ("beta", "bias"))
    },
}

_LLAMA: Mapping[str, Stored] = {
    "tokens.table": Stored("model.embed_tokens.weight"),
    "decoder.norm.gamma": Stored("model.norm.weight"),
    "scores.weight": Stored("lm_head.weight"),
    **{
        f"attention.w_{each}": Stored(f"model.layers.{{layer}}.self_attn.{each}_proj.weight")
        for each in "qkvo"
    },
    **{
        f"attention.b_{each}": Stored(f"model.layers.{{layer}}.self_attn.{each}_proj.bias")
        for each in "qkv"
    },
    "linear1.weight": Stored("model.layers.{layer}.mlp.gate_proj.weight"),
    "linear3.weight": Stored("model.layers.{layer}.mlp.up_proj.weight"),
    "linear2.weight": Stored("model.layers.{layer}.mlp.down_proj.weight"),
    "norm1.gamma": Stored("model.layers.{layer}.input_layernorm.weight"),
    "norm2.gamma": Stored("model.layers.{layer}.post_attention_layernorm.weight"),
}

_NORMS = {
    "gamma": "weight",
    "beta": "bias",
    "running_mean": "running_mean",
    "running_variance": "running_var",
    "batches": "num_batches_tracked",
}


def gpt2_names(name: str) -> Stored:
    """Return the place of a parameter of `oc.nn.gpt` in Hugging Face's checkpoints of GPT-2: of
    `GPT2Model`, or of `GPT2LMHeadModel`, whose names begin with `transformer.`.

    Args:
        name: The name of the parameter, as in `model.params`.

    Raises:
        UsageError: if the parameter is none of such a model.
    """
    return replace(_place(name, _GPT2, "GPT-2"), prefix="transformer.")


def llama_names(name: str) -> Stored:
    """Return the place of a parameter of `oc.nn.gpt`, configured as Llama, Mistral or Qwen 2, in
    Hugging Face's checkpoints of these; names and errors are as for `gpt2_names`.
    """
    return _place(name, _LLAMA, "Llama")


def resnet_names(name: str) -> Stored:
    """Return the place of a parameter or statistic of `oc.nn.resnet`, by its name in `model.params`
    or `model.statistics`, in the checkpoints of torchvision; errors are as for `gpt2_names`.
    """
    *path, leaf = name.split(".")
    if path[-1:] == ["dense"]:
        return Stored(f"fc.{leaf}")
    group = next((each for each in path if each.startswith("group")), "")
    number = path[-1].removeprefix("conv").removeprefix("norm") if path else ""
    if number not in ("1", "2", "3", "_shortcut"):
        raise _unknown(name, "a residual network")
    before = ""
    if group:
        stage, _, block = group.removeprefix("group").partition("_")
        before = f"layer{stage}.{int(block) - 1}."
    if path[-1].startswith("conv"):
        kernel = "downsample.0" if number == "_shortcut" else f"conv{number}"
        return Stored(f"{before}{kernel}.weight", transpose=(0, 2, 3, 1))
    norm = "downsample.1" if number == "_shortcut" else f"bn{number}"
    if leaf not in _NORMS:
        raise _unknown(name, "a residual network")
    return Stored(f"{before}{norm}.{_NORMS[leaf]}")


def _place(name: str, places: Mapping[str, Stored], model: str) -> Stored:
    """Return the place whose key a name ends in."""
    for end, place in places.items():
        if name == end or name.endswith("." + end):
            return place
    raise _unknown(name, model)


def _unknown(name: str, model: str) -> UsageError:
    return UsageError.at_caller(
        f"The parameters of {model} have places in its checkpoints.",
        found=repr(name),
        fix="load a model of this architecture, or state names= as a mapping",
    )
