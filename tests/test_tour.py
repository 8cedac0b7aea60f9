"""The tour shows what its code prints."""

from __future__ import annotations


def test_every_output_of_the_tour_is_what_its_code_prints() -> None:
    """`python bench/tour.py` writes the outputs."""
    import tour

    text = tour.PAGE.read_text(encoding="utf-8")
    assert text.count("```python") >= 8 and text.count("```text") >= 8
    assert tour.with_outputs(text) == text
