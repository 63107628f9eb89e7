"""What watches a rank from outside is its guard, see `undaunted.inprocess.guard`.

The module is here for programs that import it; nothing in it is for users.
"""
