"""Meeting: only a place where ranks can meet is accepted."""

from __future__ import annotations

import pytest

from phalanx.ep.meeting import Meeting


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_a_port_that_cannot_be_is_refused_with_its_value(port: int) -> None:
    with pytest.raises(ValueError, match=rf"port={port}, limit 1\.\.65535"):
        Meeting(address="head", port=port, job="j")


def test_an_empty_address_is_refused() -> None:
    with pytest.raises(ValueError, match="MASTER_ADDR"):
        Meeting(address="", port=1, job="j")
