"""Text that no database takes as it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flujo_actors.stores._record_rows import restored, storable

ANY_TEXT = st.text(st.characters(codec=None) | st.sampled_from("\0\x1a\ud800\udfff0a"))


@given(ANY_TEXT)
def test_every_text_comes_back(text):
    """What was escaped is restored exactly."""
    assert restored(storable(text)) == text


@given(ANY_TEXT)
def test_what_is_stored_is_utf8_without_nul(text):
    """Both databases take the stored form."""
    assert b"\0" not in storable(text).encode()


@given(ANY_TEXT, ANY_TEXT)
def test_different_texts_stay_different(first, second):
    """A name that looks like an escape is not mistaken for one."""
    assert (storable(first) == storable(second)) == (first == second)
