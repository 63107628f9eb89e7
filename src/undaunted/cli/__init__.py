"""The ``undaunted`` command, one module per subcommand."""
