"""A licence is inherited where the base encoder's card names one, and never guessed."""

import pytest

from hf_focalcse.publishing.inherited import inherited_licence


@pytest.mark.parametrize(
    ("card", "found"),
    [
        ("---\nlicense: mit\ntags: [x]\n---\ntext", {"license": "mit"}),
        ("---\nlicense: other\nlicense_name: x-1\n---\n", {"license": "other", "license_name": "x-1"}),
        ("---\nlanguage: en\n---\nlicense: mit", {}),
        ("---\nlicense: [\n---\n", {}),
        ("no metadata", {}),
        (None, {}),
    ],
)
def test_only_what_the_card_says(tmp_path, card, found):
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    assert inherited_licence(str(tmp_path)) == found
    assert inherited_licence("") == {}
