"""A fuzzer: valid files made here, damaged at random, and used as a user would.

Whatever is neither a result nor af.Error is a failure, and so are five seconds and two gigabytes.

python -m tests.fuzz --seconds 60 --seed 0              # every target in turn, for a minute
python -m tests.fuzz --mutations 20000 --jobs 2         # this many, in two processes
python -m tests.fuzz --only folder/ --only data/tag     # some targets; --list names them all
python -m tests.fuzz --replay data/tag:0:17             # one mutation again, with its traceback
"""
