"""torch_geometric: graphs move themselves, in place, and their loaders feed `prefetch`."""

from __future__ import annotations

import warnings

import pytest
from peer_laws import Laws, Peer, host, place_of

import xdevice

torch = xdevice.backend("torch").framework

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Batch, Data, HeteroData, TemporalData
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GCNConv

EDGES = [[0, 1, 2], [1, 2, 0]]


def data(shift=0.0):
    graph = Data(
        x=torch.arange(6.0).reshape(3, 2) + shift,
        edge_index=torch.tensor(EDGES),
        y=torch.tensor([1]),
        name="triangle",
    )
    graph.weights = [torch.ones(2), {"deep": torch.zeros(1)}]
    graph.count = 3
    return graph


def batch():
    graphs = [
        Data(x=torch.arange(6.0).reshape(3, 2) + i, edge_index=torch.tensor(EDGES))
        for i in range(3)
    ]
    return Batch.from_data_list(graphs)


def hetero():
    graph = HeteroData()
    graph["paper"].x = torch.arange(6.0).reshape(3, 2)
    graph["author"].x = torch.ones(2, 2)
    graph["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 0]])
    graph.year = 2020
    return graph


def temporal():
    return TemporalData(
        src=torch.tensor([0, 1]),
        dst=torch.tensor([1, 2]),
        t=torch.tensor([5, 6]),
        msg=torch.ones(2, 3),
    )


class Note:
    def __init__(self, x):
        self.x = x


def stored(graph):
    found = {}
    for i, store in enumerate(graph.stores):
        for key, value in store.items():
            if isinstance(value, torch.Tensor):
                found[f"{i}.{key}"] = value
            elif key == "weights":
                found["weights.0"], found["weights.1"] = value[0], value[1]["deep"]
    return found


def described(graph):
    others = {
        key: x for store in graph.stores for key, x in store.items() if isinstance(x, str | int)
    }
    return (
        [list(store.keys()) for store in graph.stores],
        others,
        graph.num_nodes,
        getattr(graph, "num_graphs", None),
    )


def graph(make, tensors=stored):
    return Peer(make, tensors, described, moves_in_place=True, reads=False, replicates=False)


class TestGeometric(Laws):
    peers = {
        "data": graph(data),
        "batch": graph(batch),
        "hetero": graph(hetero),
        "temporal": graph(temporal),
    }


def loader():
    return DataLoader([data(float(i)) for i in range(4)], batch_size=2)


@pytest.mark.parametrize(
    "wrap",
    [lambda batch: batch, lambda batch: {"graph": batch, "n": 2}],
    ids=["alone", "in dict"],
)
def test_its_loader_feeds_prefetch(wrap, place):
    fetched = list(xdevice.prefetch(map(wrap, loader()), place))
    assert len(fetched) == 2
    for new, old in zip(fetched, loader(), strict=True):
        graph = new["graph"] if isinstance(new, dict) else new
        assert type(graph) is type(old)
        assert {place_of(x) for x in (graph.x, graph.edge_index, graph.batch, graph.ptr)} == {
            place
        }
        assert host(graph.x).tolist() == host(old.x).tolist()
        assert graph.name == ["triangle", "triangle"]


def test_a_batch_is_taken_apart_where_it_is(place):
    for verb in (xdevice.to_device, xdevice.copy_to):
        moved = verb(batch(), place)
        graphs = moved.to_data_list()
        assert [place_of(graph.x) for graph in graphs] == [place] * 3
        assert [host(graph.x).tolist() for graph in graphs] == [
            host(g.x).tolist() for g in batch().to_data_list()
        ]
        assert xdevice.check_same_device(moved, graphs[1]) is place


def test_a_copy_is_not_tied_to_its_source(place):
    source = data()
    copied = xdevice.copy_to(source, place)
    copied.x = copied.x + 1
    copied.late = 5
    copied.weights.append(3)
    assert host(source.x).tolist() == host(data().x).tolist()
    assert "late" not in source
    assert len(source.weights) == 2


def test_a_network_on_graphs(place):
    torch.manual_seed(0)
    net = GCNConv(2, 2)
    graph = data()
    expected = net(graph.x, graph.edge_index).detach()
    moved, graph = xdevice.to_device([net, graph], place)
    result = moved(graph.x, graph.edge_index)
    assert place_of(result) is place
    torch.testing.assert_close(result.detach().cpu(), expected)


def test_what_a_graph_does_not_move_is_named():
    graph = data()
    graph.note = Note(torch.ones(1))
    with pytest.raises(xdevice.errors.ContainerError, match=r"left \S*\['note'\]\.x on cpu:0"):
        xdevice.to_device(graph, "gpu:1")
    assert place_of(graph.x) is xdevice.cpu()
