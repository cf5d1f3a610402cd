"""Golden outputs: what models computed at an earlier commit, to compare a change with.

    python -m tests.goldens write FOLDER     # run in a checkout of the base commit
    python -m tests.goldens compare FOLDER   # run in the changed checkout, on the same machine: equal bit for bit
    python -m tests.goldens commit           # rewrite tests/goldens/committed.json, which CI compares with at 1e-5

`make goldens BASE=commit` and `make quick` call the first two.
"""
