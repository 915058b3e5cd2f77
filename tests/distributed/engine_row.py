"""What an engine can do, as a row of the table of docs/reference/processes.md: run it as two processes."""

import xdevice

VERBS = (("all_reduce", "sum"), ("all_reduce", "max"), ("broadcast", None), ("all_gather", None),
         ("reduce_scatter", "sum"), ("reduce_scatter", "max"), ("send", None))  # fmt: skip
NAMES = {("all_reduce", "max"): "max, min", ("reduce_scatter", "max"): "max, min", ("all_reduce", "sum"): "sum",
         ("reduce_scatter", "sum"): "sum"}  # fmt: skip


def row(world):
    carrier = world._session._carrier
    held = [
        dtype
        for dtype in sorted(carrier.backend.dtypes)
        if carrier.backend.dtype_refusal(dtype) is None
    ]
    lacks = {}
    for verb, op in VERBS:
        refused = [dtype for dtype in held if carrier.engine.refusal(verb, op, dtype)]
        if refused:
            what = NAMES.get((verb, op), "send, recv" if verb == "send" else verb)
            lacks[what] = "all" if refused == held else ", ".join(refused)
    told = "; ".join(f"{what}: {dtypes}" for what, dtypes in lacks.items())
    return f"| `{world.engine}` | {', '.join(held)} | {told} |"


if __name__ == "__main__":
    with xdevice.distributed.processes() as world:
        line = row(world)
        if world.is_first:
            print(line, flush=True)
