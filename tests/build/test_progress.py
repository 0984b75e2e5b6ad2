"""Progress in a log: what lasts is written, what does not is not."""

import io
import re
import time

from dualpace.build.progress import report_to


def test_fast_steps_leave_no_line_and_notes_always_do():
    log = io.StringIO()
    with report_to(log) as progress:
        for number in range(100):
            progress.step(f"step {number}")
        progress.note("done")
    assert re.fullmatch(r"\[ +0\.\d s\] done\n", log.getvalue())


def test_a_step_that_lasts_is_written_once():
    log = io.StringIO()
    with report_to(log) as progress:
        progress.step("fast")
        progress.step("slow")
        time.sleep(2.5)
    assert re.fullmatch(r"\[ +1\.\d s\] slow\n", log.getvalue())
