"""All systems of the papers by name: their fits, the tasks that measure them, and the tables of results.

`methods` holds formulas and fits over rows of words, `study` the data that a system is fitted and measured on, and
`fitting` the choice of settings. The ``*_systems`` modules define the systems of each kind of study, and the
``*_tasks`` modules the tasks. `registry` defines what a system and a task are, and lists all of them by their ids in
the papers' checklist. This package builds on `reranker` and is never imported by it: the commands ``ssi reproduce``
and ``ssi inverted`` are found by their entry points.
"""
