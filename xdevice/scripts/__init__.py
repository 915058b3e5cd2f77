"""Scripts of other people, read and rewritten: `xdevice scan`, `lint` and `port`.

The way through the room: `sources` reads files (and writes them back byte for byte but for the edits), `project` says
what names mean across them, `inference` which values they have, `idioms` lists what is a site, `rules` gives each site
its verdict, `porting` makes the new text. `engine.examine` does all of it, and is what the commands and reports use.
Nothing of it imports a framework, NumPy, or another room.
"""
