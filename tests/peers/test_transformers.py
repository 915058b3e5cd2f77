"""transformers: what tokenizers, feature extractors and models give, caches, and a small model made from its config."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from peer_laws import Laws, Peer, host, place_of

import xdevice
from xdevice.core import registry

torch = registry.load("torch").framework

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers
    from transformers import BatchEncoding, BatchFeature, BertConfig, BertForSequenceClassification, DynamicCache
    from transformers.modeling_outputs import BaseModelOutputWithPast, SequenceClassifierOutput
    from transformers.utils import ModelOutput


def encoding():
    made = BatchEncoding(
        {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])},
        n_sequences=1,
    )
    made["texts"] = ["one two three", "four five"]
    return made


def features():
    return BatchFeature({"pixel_values": torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)), "n": 2})


def output():
    return SequenceClassifierOutput(
        loss=torch.tensor(0.5),
        logits=torch.arange(4.0).reshape(2, 2),
        hidden_states=(torch.ones(2, 3), torch.zeros(2, 3)),
    )


@dataclass
class OwnOutput(ModelOutput):
    score: torch.FloatTensor | None = None
    parts: tuple | None = None


def own_output():
    return OwnOutput(score=torch.arange(3.0), parts=({"deep": torch.ones(2)},))


def keyed(x):
    return {str(key): value for key, value in x.items() if hasattr(value, "shape")}


def output_tensors(x):
    return {"loss": x.loss, "logits": x["logits"], "hidden.0": x.hidden_states[0], "hidden.1": x.hidden_states[1]}


def output_facts(x):
    # all three ways in give the same objects
    assert x.to_tuple()[0] is x.loss is x["loss"]
    assert x[1] is x.logits
    return list(x.keys()), len(x.to_tuple()), x.attentions


def small_bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8,
    )  # fmt: skip
    return BertForSequenceClassification(config).eval()


def state(model):
    return dict(model.state_dict(keep_vars=True))


class TestTransformers(Laws):
    peers = {
        "BatchEncoding": Peer(
            encoding, keyed, lambda x: (x["texts"], x.n_sequences, x.encodings, list(x.keys())), moves_in_place=True
        ),
        "BatchFeature": Peer(features, keyed, lambda x: (x["n"], list(x.keys())), moves_in_place=True),
        "ModelOutput": Peer(output, output_tensors, output_facts),
        "own ModelOutput": Peer(
            own_output, lambda x: {"score": x.score, "deep": x.parts[0]["deep"]}, lambda x: list(x.keys())
        ),
        "BERT": Peer(small_bert, state, lambda x: (x.config.to_dict(), x.training), is_model=True, moves_in_place=True),
    }


def test_bert_computes_the_same_where_it_is(place):
    expected = small_bert()(**{key: encoding()[key] for key in ("input_ids", "attention_mask")})
    for verb in (xdevice.to_device, xdevice.copy_to):
        model, batch = verb(small_bert(), place), verb(encoding(), place)
        batch.pop("texts")
        result = model(**batch, labels=xdevice.to_device(torch.tensor([0, 1]), place))
        assert model.device == registry.load("torch").to_native(place)
        assert xdevice.device_of(result) is place
        assert type(result) is SequenceClassifierOutput
        torch.testing.assert_close(result.logits.detach().cpu(), expected.logits.detach())
        read = xdevice.to_numpy(result)
        assert type(read) is SequenceClassifierOutput
        assert type(read.logits) is np.ndarray
        result.loss.backward()
        assert {place_of(p.grad) for p in model.parameters() if p.grad is not None} == {place}


def test_its_tied_weights_stay_tied(place):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    expected = model(torch.tensor([[1, 2, 3]])).logits.detach()
    copied = xdevice.copy_to(model, place)
    assert copied.lm_head.weight is copied.transformer.wte.weight is not model.lm_head.weight
    moved = xdevice.to_device(model, place)
    assert moved.lm_head.weight is moved.transformer.wte.weight
    ids = xdevice.to_device(torch.tensor([[1, 2, 3]]), place)
    for net in (copied, moved):
        torch.testing.assert_close(net(ids).logits.detach().cpu(), expected)


def cache():
    made = DynamicCache()
    made.update(torch.arange(8.0).reshape(1, 1, 4, 2), torch.ones(1, 1, 4, 2), 0)
    return made


@pytest.mark.parametrize("wrap", [dict, BaseModelOutputWithPast])
def test_a_cache_that_cannot_move_itself_does_not_stay_behind_unnoticed(wrap):
    """A DynamicCache has no `.to`, and nothing says how it is to be rebuilt: a line has to."""
    batch = wrap(last_hidden_state=torch.ones(2), past_key_values=cache())
    for verb in (xdevice.to_device, xdevice.copy_to):
        with pytest.raises(xdevice.ContainerError, match=r"past_key_values.*DynamicCache.*register"):
            verb(batch, "gpu:1")
    assert place_of(batch["last_hidden_state"]) is xdevice.cpu()
    with pytest.raises(xdevice.DeviceMismatchError, match="past_key_values"):
        xdevice.check_same_device(x=xdevice.ones(2, device="gpu:1"), past_key_values=batch["past_key_values"])
    assert not xdevice.same_device(xdevice.ones(2, device="gpu:1"), batch)


def test_a_cache_beside_tensors_where_it_is():
    batch = {"x": torch.ones(2), "cache": cache()}
    assert xdevice.check_same_device(batch=batch) is xdevice.cpu()
    assert host(xdevice.to_device(batch, "cpu")["cache"].layers[0].keys).shape == (1, 1, 4, 2)
