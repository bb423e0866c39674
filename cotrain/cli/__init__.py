"""The command line, one file per command. A command parses its words, calls a use case and prints."""
