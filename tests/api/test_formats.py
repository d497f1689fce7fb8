"""Formats: JSON that represents every number, negotiation, and tables."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from starlette.exceptions import HTTPException

from hookcore_app.formats import MEDIA_TYPES, Table, array_json, choose, json_of, plain
from tests.api_world import strict

FLOATS = st.sampled_from([np.float16, np.float32, np.float64])


@given(FLOATS.flatmap(lambda kind: arrays(kind, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))))
def test_every_float_is_decoded_to_the_last_bit(values: Any) -> None:
    said = strict(json_of({"values": array_json(values)}))["values"]
    found = np.array(said, values.dtype).reshape(values.shape)
    assert np.array_equal(found, values, equal_nan=True)
    assert np.array_equal(np.signbit(found[~np.isnan(found)]), np.signbit(values[~np.isnan(values)]))


@given(arrays(np.float64, (4, 3), elements=st.sampled_from([np.nan, np.inf, -np.inf, 1.5])))
def test_non_finite_values_become_words_in_their_places(values: Any) -> None:
    words = {np.inf: "Infinity", -np.inf: "-Infinity"}
    expected = [[words.get(each, "NaN" if each != each else each) for each in row] for row in values.tolist()]
    assert strict(json_of(array_json(values))) == expected


@pytest.mark.parametrize("values", [np.arange(6)[::2], np.arange(6.0).reshape(2, 3).T, np.arange(3, dtype=">f8")])
def test_an_array_in_any_layout_is_written_in_its_order(values: Any) -> None:
    assert strict(json_of(array_json(values))) == values.tolist()


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=10,
)


@given(JUNK)
def test_all_values_from_a_trainer_become_json(value: Any) -> None:
    strict(json_of(plain(value)))


def test_deeply_nested_values_become_text() -> None:
    value: Any = []
    for _ in range(500):
        value = [value]
    assert len(json_of(plain(value))) < 2000


@given(st.text(alphabet="abcjsontextv/*;,q=.019 +", max_size=80))
def test_any_accept_header_gets_an_offer_or_a_refusal(accept: str) -> None:
    with suppress(HTTPException):
        assert choose(accept, ("json", "csv")) in ("json", "csv")


def test_a_refusal_names_all_offered_formats() -> None:
    with pytest.raises(HTTPException) as raised:
        choose("image/*;q=1, text/csv;q=0", ("json", "csv"))
    assert raised.value.status_code == 406
    assert all(MEDIA_TYPES[name] in raised.value.detail for name in ("json", "csv"))


def test_the_standard_library_can_read_the_json() -> None:
    assert json.loads(json_of({1: [np.int64(2)], "x": None})) == {"1": [2], "x": None}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_no_cell_of_a_csv_is_run_as_a_formula(text: str) -> None:
    table = Table({text: [text, "a" + text], "number": np.array([-1.5, 2.0])})
    names, *rows = list(csv.reader(io.StringIO(table.as_csv().decode(), newline="")))
    assert names == [f"'{text}", "number"]
    assert rows == [[f"'{text}", "-1.5"], ["a" + text, "2"]]
    assert pa.ipc.open_stream(table.as_arrow()).read_all()[text].to_pylist() == [text, "a" + text]
