"""Reads and rewrites scripts of other people: `xdevice scan`, `lint` and `port`.

The steps: `sources` reads files (and writes them back, with nothing changed but the edits), `project` resolves names
across them, `inference` finds which values expressions may have, `idioms` lists which uses of a framework are sites,
`rules` gives each site its verdict, `porting` inserts the imports. `engine.examine` does all of it for the commands and
reports. No module here imports a framework, NumPy, or another room.
"""
