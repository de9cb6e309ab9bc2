"""`bench.budget` without brokers: what samples and system calls are counted as."""

from bench import budget

SAMPLES = """\
  7 \n\tffffffff81 tcp_sendmsg ([kernel.kallsyms])
\tffffffff82 vfs_write ([kernel.kallsyms])
\tffffffff83 sock_write_iter ([kernel.kallsyms])
\t       123 write (/usr/lib/libc.so.6)

  7 \n\t       456 _PyEval_EvalFrameDefault (/usr/bin/python3)

  9 \n\tffffffff84 ext4_sync ([kernel.kallsyms])
\tffffffff85 __x64_sys_fdatasync ([kernel.kallsyms])

  9 \n\tffffffff86 do_syscall_64 ([kernel.kallsyms])
"""
CALLS = """\
  7 NR 0 = 4096
  7 NR 0 = -11
  7 NR 1 = 100
  7 NR 1 = 8
  9 NR 1 = 500
  9 NR 75 = 0
  9 NR 999 = 0
"""


def test_a_sample_is_of_the_kind_that_the_kernel_works_for():
    """A write to a socket is no write to a file, and a sample without the kernel is user time."""
    found = budget.samples_of(SAMPLES, 7)

    assert {
        ("loop", "send"): 1,
        ("loop", "user"): 1,
        ("others", "file"): 1,
        ("others", "other"): 1,
    } == found


def test_calls_are_counted_by_kind_and_bytes_only_of_those_that_moved_some():
    """A read that finds nothing counts as a call; eight bytes wake a thread; only the loop's thread sends."""
    counts, octets = budget.calls_of(CALLS, 7)

    assert {"receive": 2, "send": 1, "wake": 1, "file": 1, "flush": 1, "other": 1} == counts
    assert (4096, 100) == (octets["receive"], octets["send"])


def test_a_table_has_a_column_for_each_broker_and_no_line_of_nothing():
    """A figure of one broker is 0 for the other; a figure of none is left out."""
    lines = {"one": {"loop": 2.0, "calls, futex": 0.0}, "two": {"loop": 150.4, "calls, wake": 0.25}}

    assert [
        "| w | one | two |",
        "|---|---|---|",
        "| loop | 2 | 150 |",
        "| calls, wake | 0 | 0.25 |",
    ] == budget.table("w", lines).splitlines()
