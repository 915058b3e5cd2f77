"""torchmetrics: a metric is a module without parameters or buffers, and its states move when it is asked to move."""

from __future__ import annotations

import warnings

import pytest
from peer_laws import Laws, Peer, host, place_of

import xdevice

torch = xdevice.backend("torch").framework

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchmetrics
    from torchmetrics.classification import BinaryAccuracy, BinaryF1Score

PREDICTIONS = torch.tensor([0.1, 0.8, 0.7, 0.4, 0.9])
TARGETS = torch.tensor([0, 1, 0, 1, 1])


def mean():
    metric = torchmetrics.MeanMetric()
    metric.update(torch.tensor([1.5, 2.5, 8.0]))
    return metric


def cat():
    """Its state is a list of tensors."""
    metric = torchmetrics.CatMetric()
    metric.update(torch.tensor([1.0, 2.0]))
    metric.update(torch.tensor([3.0]))
    return metric


def accuracy():
    metric = BinaryAccuracy()
    metric.update(PREDICTIONS, TARGETS)
    return metric


def collection():
    metrics = torchmetrics.MetricCollection(
        {"accuracy": BinaryAccuracy(), "f1": BinaryF1Score()}, prefix="val_"
    )
    metrics.update(PREDICTIONS, TARGETS)
    return metrics


def wrapped():
    metric = torchmetrics.MinMaxMetric(torchmetrics.MeanMetric())
    metric.update(torch.tensor([1.0, 5.0]))
    metric.compute()
    return metric


class Trained(torch.nn.Module):
    """As in a Lightning module: metrics beside layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(2, 1)
        self.loss = mean()
        self.metrics = torch.nn.ModuleDict({"val": collection()})


class Measured(torch.nn.Module):
    """No parameters anywhere."""

    def __init__(self):
        super().__init__()
        self.metric = mean()


def states(model):
    found = dict(model.named_parameters())
    for name, module in model.named_modules():
        if not isinstance(module, torchmetrics.Metric):
            continue
        for state in module._defaults:
            value = getattr(module, state)
            for i, x in enumerate(value if isinstance(value, list) else [value]):
                found[f"{name}.{state}.{i}"] = x
    return found


def settings(model):
    metrics = [module for module in model.modules() if isinstance(module, torchmetrics.Metric)]
    return [
        (type(m), m.update_count, m.update_called, m.dtype, m.training, list(m._defaults))
        for m in metrics
    ]


def metric(make):
    return Peer(make, states, settings, moves_in_place=True, is_model=True)


class TestTorchmetrics(Laws):
    peers = {
        "mean": metric(mean),
        "cat": metric(cat),
        "accuracy": metric(accuracy),
        "collection": metric(collection),
        "module": metric(Trained),
        "module_without_parameters": metric(Measured),
        "module_list": metric(lambda: torch.nn.ModuleList([mean(), cat()])),
    }


@pytest.mark.parametrize("make", [mean, cat, accuracy])
@pytest.mark.parametrize("verb", [xdevice.to_device, xdevice.copy_to])
def test_a_metric_goes_on_where_it_is(make, verb, place):
    expected, moved = make(), verb(make(), place)
    assert moved.device == xdevice.backend("torch").to_native(place)
    args = (PREDICTIONS, TARGETS) if make is accuracy else (PREDICTIONS,)
    expected.update(*args)
    moved.update(*(xdevice.to_device(x, place) for x in args))
    assert place_of(moved.compute()) is place
    assert host(moved.compute()).tolist() == host(expected.compute()).tolist()
    moved.reset()
    moved.update(*(xdevice.to_device(x, place) for x in args))
    assert place_of(moved.compute()) is place


def test_a_wrapped_metric_moves_what_its_own_to_moves(place):
    """The extremes of MinMaxMetric are attributes, which its `.to` leaves where they are."""
    assert {place_of(x) for x in states(xdevice.to_device(wrapped(), place)).values()} == {
        place
    }


def test_a_copy_counts_for_itself(place):
    source = accuracy()
    before = source.compute()
    copied = xdevice.copy_to(source, place)
    copied.update(
        xdevice.to_device(torch.zeros(5), place), xdevice.to_device(torch.ones(5).long(), place)
    )
    source._computed = None
    assert source.compute() == before
    assert float(copied.compute()) < float(before)


def test_a_collection_goes_on_where_it_is(place):
    moved, expected = xdevice.to_device(collection(), place), collection()
    moved.update(xdevice.to_device(PREDICTIONS, place), xdevice.to_device(TARGETS, place))
    expected.update(PREDICTIONS, TARGETS)
    assert {name: float(x) for name, x in moved.compute().items()} == {
        name: float(x) for name, x in expected.compute().items()
    }
    assert {place_of(x) for x in moved.compute().values()} == {place}
