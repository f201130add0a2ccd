import io

from hypothesis import given
from hypothesis import strategies as st

from wizard.diagnosis.log_lines import MAX_LINE_BYTES, parse_line, read_lines


def texts(data: bytes) -> list[str]:
    return [line.text for line in read_lines(io.BytesIO(data))]


def test_colours_ray_prefix_time_and_repetition_are_taken_off():
    raw = "\x1b[36m(WorkerDict pid=118848, ip=10.0.0.7)\x1b[0m RuntimeError: boom [repeated 7x across cluster]"
    line = parse_line(3, raw)
    assert (line.source, line.rank, line.text) == ("WorkerDict pid=118848, ip=10.0.0.7", None, "RuntimeError: boom")
    line = parse_line(1, "[2025-05-10 00:18:27] [rank3]: ValueError: x")
    assert (line.source, line.rank, line.text) == ("rank 3", 3, "ValueError: x")


def test_a_window_title_sequence_and_control_characters_do_not_survive():
    assert parse_line(1, "\x1b]0;owned\x07a\x00b\x9b").text.startswith("ab")


def test_progress_bars_are_lines_of_their_own():
    assert texts(b"step 1\rstep 2\r\nstep 3") == ["step 1", "step 2", "step 3"]


def test_a_line_longer_than_the_limit_is_cut_and_the_next_one_is_whole():
    assert [len(text) for text in texts(b"x" * (5 << 20) + b"\nnext\n")] == [MAX_LINE_BYTES, 4]


@given(st.binary(max_size=4000), st.integers(1, 50))
def test_chunks_do_not_change_the_lines(data: bytes, cut: int):
    import wizard.diagnosis.log_lines as module

    whole = texts(data)
    original = module.CHUNK_BYTES
    try:
        module.CHUNK_BYTES = cut
        assert texts(data) == whole
    finally:
        module.CHUNK_BYTES = original
