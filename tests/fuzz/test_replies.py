"""The judge of what a broker sends: `fuzz.replies`."""

import pytest
from conformance.codec import BODY, HEADER, METHOD, encode_header, encode_method, frame
from fuzz.replies import LARGEST_HEADER, Replies, ReplyError

GET_OK = frame(METHOD, 1, encode_method("basic.get-ok", exchange="", routing_key="q", delivery_tag=1))
HEADERS = {"h": "x" * 20_000}


def test_a_content_header_may_exceed_the_frames_that_were_agreed():
    """A content header may exceed the agreed frame size; methods and bodies around it may not."""
    replies = Replies(frame_max=4096, record=True)
    replies.feed(
        GET_OK + frame(HEADER, 1, encode_header(4088, headers=HEADERS)) + frame(BODY, 1, bytes(4088))
    )

    assert ["basic.get-ok"] == replies.methods[1]
    assert replies.whole


@pytest.mark.parametrize(
    "octets",
    [
        frame(HEADER, 1, encode_header(5000)) + frame(BODY, 1, bytes(4089)),
        frame(HEADER, 1, encode_header(0) + bytes(LARGEST_HEADER)),
        frame(HEADER, 1, encode_header(5, headers=HEADERS)[:4088]) + frame(HEADER, 1, bytes(4088)),
    ],
    ids=["a body", "a header that nobody can have published", "a header in pieces"],
)
def test_no_other_frame_may(octets):
    """A larger body frame is a problem, and so are a header above all limits and one in two frames."""
    replies = Replies(frame_max=4096)
    with pytest.raises((ReplyError, ValueError)):
        replies.feed(GET_OK + octets)
