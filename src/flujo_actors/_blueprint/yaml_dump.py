"""Data as the text of a blueprint, every value written out where it stands."""

from __future__ import annotations

import yaml


class _WrittenOut(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        """No anchors: what stands twice is written twice."""
        return True


def dumped(data: object) -> str:
    """Block style, keys in the order they have."""
    text: str = yaml.dump(data, Dumper=_WrittenOut, sort_keys=False, allow_unicode=True, width=110)
    return text
