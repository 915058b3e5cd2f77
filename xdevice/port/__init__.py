"""Reads and rewrites other people's scripts: the commands `xdevice scan`, `lint` and `port`.

The steps of porting: `sources` reads files, and writes them back unchanged except for the edits. `project` resolves
names across these files. `interpreter` finds the values that each expression may have: it interprets the statements,
using the facts in `inference`, the results of calls from `calls`, and the tables of `knowledge`. `idioms` lists which
uses of a framework are *sites* (uses of a device), and `rules` reaches a verdict on each site, using a rule of
`rules_of_calls`, `rules_of_methods` or `rules_of_words`. `porting` inserts the imports. `engine.examine` runs all these
steps for the commands and reports. `lint` reads the same sources, but only one of its rules needs the inference. No
module here imports a framework, NumPy, or another part of xdevice.
"""
