"""Five lectures on transformers, item by item: each is a function that shows a thing and asserts what must be true.

    python -m lectures                   # the decks, with counts by status
    python -m lectures 003               # go through a deck
    python -m lectures 003-12            # one section;  003-12-01  one item
    python -m lectures 003 --page OUT    # a page to put beside the slides

An item reads like this:

    @item("003-5-02", kind="formula", wrong={"scale": 1.0})
    def scaled_scores(scale: float = 8**-0.5) -> Table:
        \"\"\"Scores are divided by the square root of the width of a head.\"\"\"
        ...
        assert ...
        return Table(...)

`partly` says what is missing of what an item shows, `holds` whether a claim of the slides holds ("partly", "no"), and
`documented` names the command whose numbers it reads from docs/ and does not make again (`beside`: some of them).
`wrong` replaces arguments by deliberately wrong ones: the tests check that the assertions then fail.
"""
