"""python -m anyformer"""

from anyformer.cli import main

main()
