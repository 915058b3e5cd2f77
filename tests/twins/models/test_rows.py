"""A part of a table's rows, as `names=` asks for it: RoBERTa's positions begin at 2."""

import numpy as np
import pytest

import xdevice
from xdevice.twins.contract import layouts

RANDOM = np.random.default_rng(0)


def table(torch, count, first=0, *, is_bare=False):
    """A model of words and `count` places, of which the first that it uses is `first`."""
    nn = torch.nn

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 3)
            self.places = (
                nn.Parameter(torch.randn(1, count, 4)) if is_bare else nn.Embedding(count, 4)
            )

        def forward(self, x):
            places = (
                self.places[:, first:] if is_bare else self.places(torch.arange(first, count))
            )
            return self.out(self.words(x) + places)

    return Words().eval()


@pytest.mark.parametrize("is_bare", [False, True])
def test_names_ask_for_rows_of_the_source_or_the_target(is_bare):
    torch = pytest.importorskip("torch")
    long, short = table(torch, 7, 2), table(torch, 5, is_bare=is_bare)
    x = torch.tensor(RANDOM.integers(0, 9, (2, 5)))
    state = xdevice.models.convert_state(
        long, "torch", like=short, names={"places[2:]": "places"}, inputs=x
    )
    assert state.done == [
        "rows 2 to 6 of the 7 rows of places, because of names=; the other rows are left out"
    ]
    assert "from places.weight, a part of it" in str(state)
    xdevice.load(state, into=short)
    xdevice.assert_parity(short(x), long(x))

    long = table(torch, 7, 2)
    state = xdevice.models.convert_state(
        short, "torch", like=long, names={"places": "places[2:]"}, inputs=x
    )
    assert state.done == [
        "rows 2 to 6 of the 7 rows of places, because of names=; the other rows are zeros"
    ]
    xdevice.load(state, into=long)
    assert not long.places.weight[:2].any()
    xdevice.assert_parity(long(x), short(x))


def test_the_refusal_says_how_rows_are_asked_for():
    torch = pytest.importorskip("torch")
    with pytest.raises(
        xdevice.errors.StateError,
        match=r"names=\{'places\[2:\]': 'places'\} leaves out the first 2 rows",
    ):
        xdevice.models.convert_state(table(torch, 7), "torch", like=table(torch, 5))


def test_rows_after_a_flattened_image_keep_what_is_known_of_its_pixels():
    by_pixels = layouts.with_pixels_reordered(layouts.SAME, (2, 2, 3), "the channels are last")
    assert layouts.selected_rows(by_pixels, 1, 2, 2).order == by_pixels.order


def test_other_shapes_and_joined_arrays_keep_what_is_known_of_their_rule():
    rule = layouts.with_pixels_reordered(layouts.SAME, (2, 2, 3), "the channels are last")
    rule = rule._replace(refusal="its values are scaled")
    for other in (layouts.with_torch_shape(rule, (12,), (1, 12)), layouts.packed([1, 2], rule)):
        assert (other.order, other.refusal) == (rule.order, rule.refusal)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (
            {"other[2:]": "places"},
            "nothing at this path with rows to select; name an embedding",
        ),
        ({"places[9:]": "places"}, "selects no rows of places, which has only 7 rows"),
        ({"places[1:]": "places"}, r"\(6, 4\) and \(5, 4\)"),
    ],
)
def test_rows_that_are_not_there_are_an_error(asked, why):
    torch = pytest.importorskip("torch")
    with pytest.raises(xdevice.errors.StateError, match=why):
        xdevice.models.convert_state(
            table(torch, 7), "torch", like=table(torch, 5), names=asked
        )


def test_names_of_tensors_of_other_shapes_are_an_error():
    torch = pytest.importorskip("torch")
    source, target = table(torch, 7, is_bare=True), table(torch, 5, is_bare=True)
    with pytest.raises(
        xdevice.errors.StateError, match=r"but their shapes are \(\(7, 4\),\) and \(\(5, 4\),\)"
    ):
        xdevice.models.convert_state(source, "torch", like=target, names={"places": "places"})
