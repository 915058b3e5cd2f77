"""Reads and rewrites other people's scripts: the commands `xdevice scan`, `lint` and `port`.

The steps of porting: `sources` reads files (and writes them back, with nothing changed but the
edits). `project` resolves names across them. `interpreter` finds which values expressions may
have: it interprets the statements with the facts in `inference`, the values of calls from
`calls`, and the tables of `knowledge`. `idioms` lists which uses of a framework are *sites*
(uses of a device), and `rules` gives each site its verdict, by a rule of `rules_of_calls` or
`rules_of_methods`. `porting` inserts the imports. `engine.examine` runs all these steps for the
commands and reports. `lint` needs inference for one rule only. No module here imports a
framework, NumPy, or another part of xdevice.
"""
