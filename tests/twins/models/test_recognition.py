"""States without their module: who wrote them, what their tensors are, and what is asked for where nothing tells it."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re

import numpy as np
import pytest
from helpers.environment import framework
from safetensors.numpy import save_file

import xdevice
from xdevice.twins.contract import layouts
from xdevice.twins.models import recognition
from xdevice.twins.weights.nested import find_state

torch = framework("torch")
paddle = framework("paddle")
nn = torch.nn
pn = paddle.nn


def net(width=4, of=nn):
    return of.Sequential(of.Linear(4, 4), of.ReLU(), of.Linear(4, width))


def values(model):
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def port(source, like, **told):
    backend = "torch" if isinstance(like, nn.Module) else "paddle"
    state = xdevice.models.convert_state(source, backend, like=like, **told)
    xdevice.load(state, into=like)
    return state


def require_equal(one, other, x=None):
    xdevice.assert_parity(one.eval(), other.eval(), inputs=torch.rand(3, 4) if x is None else x)


# who wrote it


@pytest.mark.parametrize("reader", [nn, pn])
@pytest.mark.parametrize("writer", [nn, pn])
def test_a_file_of_save_says_who_wrote_it(writer, reader, tmp_path):
    source, like = net(of=writer), net(of=reader)
    xdevice.save(tmp_path / "x.safetensors", {"part": source})
    port(tmp_path / "x.safetensors", like)
    if writer is reader:
        assert all(
            (values(like)[name] == value).all() for name, value in values(source).items()
        )
    require_equal(source, like)


@pytest.mark.parametrize("reader", [nn, pn])
@pytest.mark.parametrize(("written", "writer"), [("pd", pn), ("pt", nn)])
def test_the_format_in_a_header_is_taken(written, writer, reader, tmp_path):
    source, like = net(of=writer), net(of=reader)
    save_file(values(source), tmp_path / "x.safetensors", metadata={"format": written})
    port(tmp_path / "x.safetensors", like)
    require_equal(source, like)


@pytest.mark.parametrize("reader", [nn, pn])
@pytest.mark.parametrize("writer", [nn, pn])
def test_a_file_that_does_not_say_who_wrote_it_is_transposed_only_if_a_shape_tells(
    writer, reader, tmp_path
):
    path = tmp_path / "x.safetensors"
    save_file(values(net(of=writer)), path)
    with pytest.raises(
        xdevice.errors.StateError,
        match=r"0\.weight is laid out .*; pass layout='torch' or layout='paddle'",
    ):
        xdevice.models.convert_state(
            path, "torch" if reader is nn else "paddle", like=net(of=reader)
        )
    source, like = net(of=writer), net(of=reader)
    save_file(values(source), path)
    port(path, like, layout="torch" if writer is nn else "paddle")
    require_equal(source, like)
    source, like = net(3, of=writer), net(3, of=reader)
    save_file(values(source), path)
    port(path, like)
    require_equal(source, like)


def test_layout_is_a_name_that_is_known():
    with pytest.raises(
        xdevice.errors.ArgumentError,
        match=r"layout= must be one of torch, paddle, .*, not 'pytorch'",
    ):
        xdevice.models.convert_state({}, "torch", layout="pytorch")


# dicts


@dataclasses.dataclass
class Layer:
    kernel: object
    bias: object


Pair = collections.namedtuple("Pair", "kernel bias")
FORMS = {
    "a list of tuples": lambda a, b, c, d: [(a, b), (c, d)],
    "numbered": lambda a, b, c, d: {"w1": a, "b1": b, "w2": c, "b2": d},
    "capitals": lambda a, b, c, d: {"one": {"W": a, "b": b}, "two": {"W": c, "b": d}},
    "haiku": lambda a, b, c, d: {"mlp/~/linear_0": {"w": a, "b": b}, "mlp/~/linear_1": {"w": c, "b": d}},
    "dataclasses": lambda a, b, c, d: {"one": Layer(a, b), "two": Layer(c, d)},
    "named tuples": lambda a, b, c, d: [Pair(a, b), Pair(c, d)],
    "flax": lambda a, b, c, d: {"params": {"Dense_0": {"kernel": a, "bias": b}, "Dense_1": {"kernel": c, "bias": d}}},
    "training": lambda a, b, c, d: {
        "step": 3, "params": {"Dense_0": {"kernel": a, "bias": b}, "Dense_1": {"kernel": c, "bias": d}},
        "opt_state": ({"mu": {"Dense_0": {"kernel": a}}},),
    },
    "parts and a count": lambda a, b, c, d: {"epoch": 3, "enc": {"w": a, "b": b}, "dec": {"x": {"w": c, "b": d}}},
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "of", [np.asarray, lambda x: framework("jax").numpy.asarray(x)], ids=["numpy", "jax"]
)
def test_a_nested_dict_is_one_state(of, form):
    source = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
    first, second = (
        [of(layer.weight.detach().numpy().T), of(layer.bias.detach().numpy())]
        for layer in source[::2]
    )
    like = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
    state = port(FORMS[form](*first, *second), like)
    # no path is that of the target's: that the order is right, nobody has seen
    assert (
        any(line.startswith("not compared: the kinds of") for line in state.differences)
        or "numbered" in form
    )
    require_equal(source, like)


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("one", "read one.W as one.w"),
        ("capitals", "read one.W as one.w, and 1 more in the same way"),
    ],
)
def test_names_that_were_changed_are_counted(form, line):
    weights = [np.ones((4, 4), "float32"), np.ones(4, "float32")]
    source = FORMS["capitals"](*weights, *weights)
    if form == "one":
        source["two"] = FORMS["haiku"](*weights, *weights)["mlp/~/linear_0"]
    like = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert line in xdevice.models.convert_state(source, "torch", like=like).done


def test_numbers_in_names_are_counted_as_numbers():
    """JAX sorts keys as texts."""
    sizes = [3, *(4 for _ in range(11)), 2]
    source = nn.Sequential(*(nn.Linear(one, two) for one, two in itertools.pairwise(sizes)))
    tree = {
        f"Dense_{number}": {
            "kernel": layer.weight.detach().numpy().T,
            "bias": layer.bias.detach().numpy(),
        }
        for number, layer in enumerate(source)
    }
    like = nn.Sequential(*(nn.Linear(one, two) for one, two in itertools.pairwise(sizes)))
    port({"params": {name: tree[name] for name in sorted(tree)}}, like)
    require_equal(source, like, torch.rand(2, 3))


def test_two_states_of_one_model_are_asked_for():
    tree = {"a": {"kernel": np.ones((4, 4)), "bias": np.ones(4)}}
    with pytest.raises(
        xdevice.errors.StateError, match="several states, 'model', 'ema'; pass one of them"
    ):
        xdevice.models.convert_state(
            {"epoch": 3, "model": tree, "ema": tree}, "torch", like=nn.Linear(4, 4)
        )


@pytest.mark.parametrize("empty", [None, {}, []])
def test_what_is_empty_is_no_state(empty):
    source, like = nn.Linear(4, 4), nn.Linear(4, 4)
    whole = {"model": source.state_dict(), "ema": empty, "scheduler": None, "extra": empty}
    state = xdevice.models.convert_state(whole, "torch", like=like)
    assert sorted(state) == ["bias", "weight"]
    xdevice.load(state, into=like)
    assert torch.equal(like.weight, source.weight)
    # two parts of one model, as before
    tree = {"a": {"w": np.ones(2)}, "b": {"v": np.ones(2)}, "c": empty, "d": empty, "epoch": 3}
    assert sorted(find_state(tree, "it").state) == ["a.w", "b.v"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln, self.fc = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        return x + self.fc(self.ln(x))


class Gpt(nn.Module):
    def __init__(self, is_tied=False):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(10, 4), nn.Embedding(6, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 10, bias=False)
        if is_tied:
            self.head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def plain(model):
    """As a GPT of plain functions has it."""
    own = values(model)
    blocks = [
        {
            "ln": {
                "g": own[f"blocks.{number}.ln.weight"],
                "b": own[f"blocks.{number}.ln.bias"],
            },
            "fc": {
                "w": own[f"blocks.{number}.fc.weight"].T,
                "b": own[f"blocks.{number}.fc.bias"],
            },
        }
        for number in range(2)
    ]
    return {
        "wte": own["wte.weight"], "wpe": own["wpe.weight"], "blocks": blocks, "head": {"w": own["head.weight"].T},
    }  # fmt: skip


def flax(model):
    own = plain(model)
    blocks = {
        f"blocks_{number}": {
            "ln": {"scale": block["ln"]["g"], "bias": block["ln"]["b"]},
            "fc": {"kernel": block["fc"]["w"], "bias": block["fc"]["b"]},
        }
        for number, block in enumerate(own["blocks"])
    }
    return {
        **blocks, "head": {"kernel": own["head"]["w"]}, "wpe": {"embedding": own["wpe"]},
        "wte": {"embedding": own["wte"]},
    }  # fmt: skip


@pytest.mark.parametrize("form", [plain, flax])
def test_a_language_model_of_a_function_goes_to_pytorch(form):
    source, like = Gpt(), Gpt()
    port(form(source), like)
    ids = torch.randint(0, 10, (2, 5))
    assert torch.equal(source(ids), like(ids))


def test_what_is_not_certain_is_asked_for_in_a_line_that_can_be_pasted():
    tree = flax(Gpt())
    with pytest.raises(
        xdevice.errors.StateError, match="names and shapes suggest kinds="
    ) as raised:
        xdevice.models.convert_state(tree, "torch")
    kinds = eval(re.search(r"kinds=(\{.*?\})", str(raised.value))[1])  # as a user pastes it
    state = xdevice.models.convert_state(tree, "torch", kinds=kinds)
    assert len(state) == 11
    assert state["blocks_0.fc.weight"].tolist() == tree["blocks_0"]["fc"]["kernel"].T.tolist()
    # a group norm and a layer norm of one shape have the same parameters
    both = nn.Sequential(nn.LayerNorm(4), nn.GroupNorm(2, 4))
    tree = {name: {"scale": np.ones(4, "f4"), "bias": np.ones(4, "f4")} for name in "ab"}
    with pytest.raises(
        xdevice.errors.StateError, match=r"'a' may be layer_norm or group_norm.*kinds="
    ):
        xdevice.models.convert_state(tree, "torch", like=both)
    port(tree, both, kinds={"a": "layer_norm", "b": "group_norm"})


def test_a_layout_that_does_not_fit_is_no_guess():
    """A convolution and a transposed one of one shape."""
    tree = {"up": {"kernel": np.ones((3, 3, 4, 4)), "bias": np.ones(4)}}
    with pytest.raises(
        xdevice.errors.StateError, match=r"layout='flax' or layout='tensorflow'"
    ):
        xdevice.models.convert_state(
            tree, "torch", like=nn.Sequential(nn.ConvTranspose2d(4, 4, 3))
        )


# tied weights, and the parameters of norms


@pytest.mark.parametrize("kept", ["wte.weight", "head.weight"])
@pytest.mark.parametrize("is_file", [False, True])
def test_a_tied_weight_has_one_name_in_a_state(is_file, kept, tmp_path):
    source, like = Gpt(is_tied=True), Gpt(is_tied=True)
    own = {
        name: value
        for name, value in source.state_dict().items()
        if name == kept or "blocks" in name or "wpe" in name
    }
    if is_file:
        torch.save(own, tmp_path / "x.pt")
    state = port(tmp_path / "x.pt" if is_file else own, like)
    assert any("they are tied" in line for line in state.done)
    ids = torch.randint(0, 10, (2, 5))
    assert torch.equal(source(ids), like(ids))


def test_what_a_header_says_of_a_name_is_taken_where_the_target_has_it(tmp_path):
    source, like = Gpt(is_tied=True), Gpt()
    own = {name: value for name, value in values(source).items() if name != "head.weight"}
    save_file(
        own,
        tmp_path / "x.safetensors",
        metadata={"format": "pt", "head.weight": "wte.weight", "by": "wpe.weight"},
    )
    port(tmp_path / "x.safetensors", like)
    ids = torch.randint(0, 10, (2, 5))
    assert torch.equal(source(ids), like(ids))


NORMS = {
    "weight norm": (torch.nn.utils.parametrizations.weight_norm, pn.utils.weight_norm),
    "spectral norm": (torch.nn.utils.parametrizations.spectral_norm, pn.utils.spectral_norm),
}


@pytest.mark.parametrize("norm", NORMS)
def test_a_state_with_a_norm_of_a_weight_goes_to_one_and_to_none(norm):
    theirs, mine = NORMS[norm]
    source = nn.Sequential(theirs(nn.Conv2d(4, 4, 3)), nn.Conv2d(4, 3, 1)).eval()
    x = torch.rand(2, 4, 5, 5)
    for wrapped in (mine, lambda layer: layer):
        like = pn.Sequential(wrapped(pn.Conv2D(4, 4, 3)), pn.Conv2D(4, 3, 1))
        port(source.state_dict(), like)
        require_equal(source, like, x)


def test_a_state_goes_into_its_own_class_whatever_that_computes():
    """The Conv1D of transformers is known by its class."""
    transformers = pytest.importorskip("transformers")
    source, like = (
        nn.Sequential(transformers.pytorch_utils.Conv1D(4, 4), nn.Linear(4, 4))
        for _ in range(2)
    )
    port(source.state_dict(), like)
    assert all(
        torch.equal(one, two)
        for one, two in zip(source.parameters(), like.parameters(), strict=True)
    )


SMALL = {
    "vocab_size": 40,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "intermediate_size": 8,
}
LANGUAGE = {
    "GPT2LMHeadModel": {"vocab_size": 40, "n_embd": 8, "n_head": 2, "n_layer": 1},
    "LlamaForCausalLM": {**SMALL, "tie_word_embeddings": True},
    "BertForMaskedLM": SMALL,
    "T5ForConditionalGeneration": {
        "vocab_size": 40,
        "d_model": 8,
        "d_kv": 4,
        "d_ff": 8,
        "num_layers": 1,
        "num_heads": 2,
    },
    "OPTForCausalLM": {
        **SMALL,
        "ffn_dim": 8,
        "word_embed_proj_dim": 8,
        "max_position_embeddings": 9,
    },
}


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_folder_of_transformers_goes_into_its_own_class(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    cls = getattr(transformers, name)
    source, like = (cls(cls.config_class(**LANGUAGE[name])) for _ in range(2))
    source.save_pretrained(tmp_path)
    state = port(tmp_path, like)
    assert any("they are tied" in line for line in state.done)
    own = source.state_dict()
    assert all(torch.equal(own[key], value) for key, value in like.state_dict().items())


def test_readings_are_compared_by_the_paths_of_their_layers():
    def reading(dialect, rule, *paths):
        layers = [
            layouts.Layer(
                path, "linear", (layouts.Part(f"{path}.weight", ("weight",), rule),), {}
            )
            for path in paths
        ]
        return recognition.Reading(dialect, layers, [], {}, 0, 0, len(layers))

    first = reading("flax", layouts.TRANSPOSED, "a", "b")
    same = reading("paddle", layouts.TRANSPOSED, "b", "a", "c")
    other = reading("mxnet", layouts.SAME, "b", "a")
    assert recognition.chosen_reading([first, same], is_torch_assumed=False) is first
    with pytest.raises(
        xdevice.errors.StateError, match=r"a\.weight is laid out differently in flax"
    ):
        recognition.chosen_reading([first, same, other], is_torch_assumed=False)
