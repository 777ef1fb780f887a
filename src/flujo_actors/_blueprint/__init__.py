"""Blueprints: pipelines written in YAML.

Text becomes nodes (`parser.nodes`), and nodes become a model (`parser.field_parser`, driven by `parser.field_table`).
Rules check the model (`lint.linter`), and findings may carry edits of the text (`lint.fixer`). A model without errors
becomes a `Pipeline` (`compiler`). Nothing is executed here, and no named module is imported before the text is valid.
"""
