"""What PyTorch itself has beside tensors and modules: packed sequences, optimizers, schedulers, averaged models."""

from __future__ import annotations

import pytest
from peer_laws import Laws, Peer, host, place_of

import xdevice

torch = xdevice.backend("torch").framework

from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence  # noqa: E402


def packed(enforce_sorted=False):
    padded = torch.arange(24.0).reshape(3, 4, 2)
    return pack_padded_sequence(
        padded, torch.tensor([2, 4, 1]), batch_first=True, enforce_sorted=enforce_sorted
    )


def sorted_packed():
    return pack_padded_sequence(torch.arange(12.0).reshape(2, 3, 2), [3, 1], batch_first=True)


def on_device(sequence):
    """`batch_sizes` belongs on the host wherever the rest is."""
    found = {
        "data": sequence.data,
        "sorted": sequence.sorted_indices,
        "unsorted": sequence.unsorted_indices,
    }
    return {name: x for name, x in found.items() if x is not None}


def sizes(sequence):
    assert place_of(sequence.batch_sizes) is xdevice.cpu()
    return sequence.batch_sizes.tolist()


class TestTorch(Laws):
    peers = {
        "PackedSequence": Peer(packed, on_device, sizes, reads=False, replicates=False),
        "sorted PackedSequence": Peer(
            sorted_packed, on_device, sizes, reads=False, replicates=False
        ),
        "ParameterDict": Peer(
            lambda: torch.nn.ParameterDict({"w": torch.ones(2), "b": torch.zeros(1)}),
            lambda model: dict(model.items()),
            is_model=True,
            moves_in_place=True,
        ),
        "AveragedModel": Peer(
            lambda: torch.optim.swa_utils.AveragedModel(torch.nn.BatchNorm1d(2)),
            lambda model: dict(model.state_dict(keep_vars=True)),
            is_model=True,
            moves_in_place=True,
        ),
    }


@pytest.mark.parametrize("source", ["cpu:0", "gpu:0"])
def test_a_packed_sequence_goes_through_a_network(source, place):
    torch.manual_seed(0)
    net = torch.nn.GRU(2, 3, batch_first=True)
    expected = pad_packed_sequence(net(packed())[0], batch_first=True)[0].detach()
    there = xdevice.to_device(packed(), source)
    for moved in (xdevice.to_device(there, place), *xdevice.prefetch([there], place)):
        assert type(moved) is PackedSequence
        result, lengths = pad_packed_sequence(
            xdevice.copy_to(net, place)(moved)[0], batch_first=True
        )
        assert place_of(result) is place
        assert lengths.tolist() == [2, 4, 1]
        torch.testing.assert_close(result.detach().cpu(), expected)


def test_a_packed_sequence_is_read():
    read = xdevice.to_numpy({"packed": xdevice.to_device(packed(), "gpu:1")})["packed"]
    assert host(read.data).tolist() == packed().data.tolist()
    assert host(read.batch_sizes).tolist() == packed().batch_sizes.tolist()


def trained(place, move_after):
    """Parameters after some steps, model and optimizer being moved between two of them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    where = xdevice.cpu()
    for step in range(5):
        if step == move_after:
            moved = xdevice.to_device(
                {"model": model, "optimizer": optimizer, "scheduler": scheduler}, place
            )
            assert moved["model"] is model
            assert moved["optimizer"] is optimizer
            assert moved["scheduler"] is scheduler
            where = place
            states = [
                state[key]
                for state in optimizer.state.values()
                for key in ("exp_avg", "exp_avg_sq")
            ]
            assert {place_of(x) for x in states} == {place}
            assert xdevice.device_of([model, optimizer]) is place
        x = xdevice.to_device(torch.arange(6.0).reshape(2, 3), where)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        scheduler.step()
    return [host(p) for p in model.parameters()], scheduler.get_last_lr()


def test_training_goes_on_after_a_move(place):
    moved, rates = trained(place, 3)
    expected, expected_rates = trained(place, None)
    assert rates == expected_rates
    for one, other in zip(moved, expected, strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other))


def test_states_of_models_and_optimizers(place):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    moved = xdevice.copy_to(state, place)
    assert type(moved["model"]) is type(state["model"])
    assert moved["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    assert place_of(moved["optimizer"]["state"][0]["momentum_buffer"]) is place
    assert moved["epoch"] == 3
    fresh = xdevice.to_device(torch.nn.Linear(2, 1), place)
    fresh.load_state_dict(moved["model"])
    again = torch.optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9)
    again.load_state_dict(moved["optimizer"])
    assert host(fresh.weight).tolist() == host(model.weight).tolist()
