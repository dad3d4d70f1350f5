"""Every system of the papers by name: what it fits on, the tasks that measure it, and the tables they print.

`methods` holds formulas and fits over rows of words; `study` what a system sees, `fitting` how its settings are chosen,
the ``*_systems`` modules the systems of each kind of study, the ``*_tasks`` modules what measures them. `registry` says
what a system and a task are, and lists all of them by their ids in the papers' checklist. This package stands above
`reranker` and is never imported by it: the command ``ssi reproduce`` is found by its entry point.
"""
