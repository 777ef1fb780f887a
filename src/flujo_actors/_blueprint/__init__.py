"""Blueprints: pipelines written in YAML.

A text becomes nodes (`nodes`), nodes become a model (`reading`, driven by the table of `fields`), the model is looked
at by rules (`linting`), findings may carry edits of the text (`fixing`), and a model without errors becomes a
`Pipeline` (`compiling`). Nothing here runs anything, and nothing is imported because a text names it before the text
is valid.
"""
