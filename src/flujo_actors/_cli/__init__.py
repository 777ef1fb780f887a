"""The command `flujo-actors`: one module for each command, loaded when the command is used."""
