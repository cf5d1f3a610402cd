"""python -m anyformer"""

from anyformer.cli.main import main

main()
