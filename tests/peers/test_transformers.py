"""transformers: what tokenizers, feature extractors and models give, caches, and a small model made from its config."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from peer_laws import Laws, Peer, host, place_of

import xdevice

torch = xdevice.backend("torch").framework

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers
    from transformers import (
        BatchEncoding,
        BatchFeature,
        BertConfig,
        BertForSequenceClassification,
        DynamicCache,
    )
    from transformers.modeling_outputs import BaseModelOutputWithPast, SequenceClassifierOutput
    from transformers.utils import ModelOutput


def encoding():
    made = BatchEncoding(
        {
            "input_ids": torch.tensor([[1, 2, 3], [4, 5, 0]]),
            "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        },
        n_sequences=1,
    )
    made["texts"] = ["one two three", "four five"]
    return made


def features():
    return BatchFeature(
        {
            "pixel_values": torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)),
            "n": 2,
        }
    )


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
    return {
        "loss": x.loss,
        "logits": x["logits"],
        "hidden.0": x.hidden_states[0],
        "hidden.1": x.hidden_states[1],
    }


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
            encoding,
            keyed,
            lambda x: (x["texts"], x.n_sequences, x.encodings, list(x.keys())),
            moves_in_place=True,
        ),
        "BatchFeature": Peer(
            features, keyed, lambda x: (x["n"], list(x.keys())), moves_in_place=True
        ),
        "ModelOutput": Peer(output, output_tensors, output_facts),
        "own ModelOutput": Peer(
            own_output,
            lambda x: {"score": x.score, "deep": x.parts[0]["deep"]},
            lambda x: list(x.keys()),
        ),
        "BERT": Peer(
            small_bert,
            state,
            lambda x: (x.config.to_dict(), x.training),
            is_model=True,
            moves_in_place=True,
        ),
    }


def test_bert_computes_the_same_where_it_is(place):
    expected = small_bert()(**{key: encoding()[key] for key in ("input_ids", "attention_mask")})
    for verb in (xdevice.to_device, xdevice.copy_to):
        model, batch = verb(small_bert(), place), verb(encoding(), place)
        batch.pop("texts")
        result = model(**batch, labels=xdevice.to_device(torch.tensor([0, 1]), place))
        assert model.device == xdevice.backend("torch").to_native(place)
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
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2
    )
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


def both_caches():
    return transformers.EncoderDecoderCache(cache(), cache())


@pytest.mark.parametrize("make", [cache, both_caches])
@pytest.mark.parametrize("wrap", [dict, BaseModelOutputWithPast])
def test_caches_go_with_what_holds_them(wrap, make, place):
    batch = wrap(last_hidden_state=torch.ones(2), past_key_values=make())
    held = batch["past_key_values"]
    for verb in (xdevice.to_device, xdevice.copy_to):
        moved = verb(batch, place)["past_key_values"]
        assert type(moved) is type(held)
        for one, old in zip(layers(moved), layers(held), strict=True):
            assert place_of(one.keys) is place_of(one.values) is place
            assert one.device == one.keys.device
            assert place_of(old.keys) is xdevice.cpu()
            assert old.device == torch.device("cpu")
    assert xdevice.same_device(xdevice.ones(2, device=place), moved)
    assert type(layers(xdevice.to_numpy(batch)["past_key_values"])[0].keys) is np.ndarray


def test_parts_of_a_cache_are_joined_although_each_records_its_device():
    whole = DynamicCache()
    whole.update(torch.arange(8.0).reshape(4, 1, 2, 1), torch.ones(4, 1, 2, 1), 0)
    parts = xdevice.split_batch({"cache": whole}, ["gpu:0", "gpu:1"])
    joined = xdevice.parallel.gather(parts, "cpu")["cache"]
    assert layers(joined)[0].device == torch.device("cpu")
    assert torch.equal(layers(joined)[0].keys, layers(whole)[0].keys)


def layers(x):
    if isinstance(x, transformers.EncoderDecoderCache):
        return [*x.self_attention_cache.layers, *x.cross_attention_cache.layers]
    return x.layers


CONFIGS = {
    "GPT-2": lambda: transformers.GPT2Config(
        vocab_size=11,
        n_positions=8,
        n_embd=8,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "LLaMA": lambda: transformers.LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    ),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_generation_goes_on_where_the_cache_is(config, place):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config()).eval()
    ids, last = torch.tensor([[1, 2, 3]]), torch.tensor([[4]])
    xdevice.assert_parity(model, xdevice.copy_to(model, "cpu"), inputs=ids)
    first = model(ids)
    there = xdevice.copy_to(model, place)
    moved = xdevice.copy_to(first, place)
    expected = model(last, past_key_values=first.past_key_values).logits.detach()
    found = there(xdevice.to_device(last, place), past_key_values=moved.past_key_values).logits
    torch.testing.assert_close(found.detach().cpu(), expected)


def test_a_cache_beside_tensors_where_it_is():
    batch = {"x": torch.ones(2), "cache": cache()}
    assert xdevice.check_same_device(batch=batch) is xdevice.cpu()
    assert host(xdevice.to_device(batch, "cpu")["cache"].layers[0].keys).shape == (1, 1, 4, 2)
