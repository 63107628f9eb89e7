"""Silent nodes are noticed by the controller, see `undaunted.inprocess.core.controller`.

The module is here for programs that import it; nothing in it is for users.
"""
