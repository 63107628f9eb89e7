"""Empty: silent nodes are noticed by `undaunted.inprocess.core.controller`."""
