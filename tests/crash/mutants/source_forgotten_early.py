"""Mutant: a message that moves to another queue is deleted one commit before it is written there."""

from two_commits import forget_first

forget_first(lambda journal: any(block.moved for block in journal._dirty))
