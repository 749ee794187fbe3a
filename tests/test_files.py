"""Files are replaced whole or not at all."""

import pytest

from cleanrl_utils.files import read_json, replacing, write_json


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_when_it_is_complete_and_not_before(tmp_path, durable):
    path = tmp_path / "x.txt"
    path.write_text("old")
    with replacing(path, durable=durable) as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write("half of")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_two_writers_that_write_aside_in_different_places_do_not_meet(tmp_path):
    path = tmp_path / "x.json"
    with replacing(path, aside=tmp_path / "x.1.tmp") as first, replacing(path, aside=tmp_path / "x.2.tmp") as second:
        first.write('{"writer": 1}')
        second.write('{"writer": 2}')
    assert read_json(path) == {"writer": 1}  # the one that has finished last


@pytest.mark.parametrize("text", [None, "", "{", "[1, 2]"])
def test_json_that_is_missing_or_damaged_is_empty(tmp_path, text):
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    assert read_json(path) == {}
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
