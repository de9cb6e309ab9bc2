"""Check a commit's message; `.githooks/commit-msg` runs it before a commit is made.

git config core.hooksPath .githooks
"""

import re
import sys
from pathlib import Path

LONGEST = 72
"""Maximum length of a subject in characters."""
_SUBJECT = re.compile(r"[a-z][a-z0-9 ,/_.-]*: \S+ \S.*[^.\s]")
_MADE_BY_GIT = re.compile(r'(Merge|Revert "|fixup! |squash! |amend! )')
_TRAILER = re.compile(r"[A-Z][\w-]+: \S.*")


def problems(message: str) -> list[str]:
    """Return the faults of a message: the subject must be `area: verb object`, and the body must say why."""
    lines = [line.rstrip() for line in message.splitlines() if not line.startswith("#")]
    subject, *rest = lines or [""]
    if _MADE_BY_GIT.match(subject):
        return []
    found = []
    if not _SUBJECT.fullmatch(subject):
        found.append("the subject is not `area: verb object`")
    if len(subject) > LONGEST:
        found.append(f"the subject has {len(subject)} characters, {LONGEST} are the most")
    if rest and rest[0]:
        found.append("the line below the subject is not empty")
    if not any(line and not _TRAILER.fullmatch(line) for line in rest):
        found.append("no body says why")
    return found


if __name__ == "__main__":
    found = problems(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.exit("\n".join(found) if found else 0)
