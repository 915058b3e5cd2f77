"""Registered containers in the trees of JAX, PyTorch and optree: nothing is lost, and both orders of loading work."""

from __future__ import annotations

import pytest
from helpers.environment import needs, printed

GAME = """
import xdevice
class Game:
    def __init__(self, board, name):
        self.board, self.name, self.history = board, name, []
"""
MAP = {
    "jax": "import jax\nnew = jax.tree.map(lambda x: x * 2, game)\nparts = len(jax.tree.leaves(game))\n",
    "torch": "from torch.utils import _pytree\nnew = _pytree.tree_map(lambda x: x * 2, game)\n"
    "parts = len(_pytree.tree_leaves(game))\n",
    "optree": "new = optree.tree_map(lambda x: x * 2, game, namespace='xdevice')\n"
    "parts = len(optree.tree_leaves(game, namespace='xdevice'))\n",
}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("name", MAP)
def test_the_frameworks_trees_walk_a_registered_container(name, is_first):
    walk = MAP[name]
    needs("torch" if name == "optree" else name)
    load, register = f"xdevice.backend({name!r})\n", "xdevice.register_container(Game)\n"
    if name == "optree":
        if is_first:
            pytest.skip("optree has no place where xdevice could hear of its import")
        load, name = "import optree\n", "torch"
    code = GAME + (register + load if is_first else load + register)
    code += "game = Game(xdevice.ones(2), 'chess')\n" + walk
    code += "print(parts, xdevice.to_numpy(new.board).tolist(), new.name, new.history, type(new).__name__)"
    assert printed("-c", code, XDEVICE_BACKEND=name) == "1 [2.0, 2.0] chess [] Game"


def test_a_type_that_first_had_functions_becomes_a_node_when_it_is_registered_without():
    needs("jax")
    code = GAME + (
        "import jax\nxdevice.backend('jax')\n"
        "xdevice.register_container(Game, flatten=vars, rebuild=lambda old, inside: Game(**inside))\n"
        "print(len(jax.tree.leaves(Game(xdevice.ones(2), 'chess'))), end=' ')\n"
        "xdevice.register_container(Game)\nxdevice.register_container(Game)\n"
        "print(jax.tree.leaves(Game(xdevice.ones(2), 'chess'))[0].tolist())"
    )
    assert printed("-c", code, XDEVICE_BACKEND="jax") == "1 [1.0, 1.0]"


def test_a_jitted_function_compiles_anew_for_other_static_attributes():
    needs("jax")
    code = GAME + (
        "import jax\nxdevice.backend('jax')\nxdevice.register_container(Game)\n"
        "f = jax.jit(lambda game: game.board * len(game.name))\n"
        "print([f(Game(xdevice.ones(1), name)).tolist() for name in ('a', 'bcd', 'a')], f._cache_size())"
    )
    assert printed("-c", code, XDEVICE_BACKEND="jax") == "[[1.0], [3.0], [1.0]] 2"


def test_a_type_that_the_program_has_registered_stays_as_it_is():
    needs("jax")
    code = GAME + (
        "import jax\nxdevice.backend('jax')\n"
        "apart, whole = lambda game: ((game.board,), game.name), lambda name, parts: Game(parts[0], name + '!')\n"
        "jax.tree_util.register_pytree_node(Game, apart, whole)\n"
        "xdevice.register_container(Game)\n"
        "print(jax.tree.map(lambda x: x, Game(xdevice.ones(1), 'go')).name)"
    )
    assert printed("-c", code, XDEVICE_BACKEND="jax") == "go!"
