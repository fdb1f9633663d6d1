"""What the preflight finds: one line each, with what to do about it. Holds no secret and no payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from outboxrelay.wording import counted

Level = Literal["ok", "warning", "error"]


class Finding(BaseModel):
    """One thing that was looked at. An error keeps the relay from working or breaks what it promises."""

    model_config = ConfigDict(frozen=True)

    level: Level
    subject: str
    message: str
    remedy: str = ""
    """What to do, in words; empty if the statements say it all."""

    statements: tuple[str, ...] = ()
    """SQL that mends it, for the owner of the table to run; what `outboxrelay sql` prints."""


class Findings(BaseModel):
    """The whole preflight."""

    model_config = ConfigDict(frozen=True)

    ok: bool
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> Findings:
        """All findings; `ok` if none is an error."""
        return cls(ok=all(finding.level != "error" for finding in findings), findings=tuple(findings))

    def text(self) -> str:
        """For people: one line a finding, below it the remedy, or else the statements."""
        lines: list[str] = []
        for finding in self.findings:
            lines.append(f"{finding.level:<8} {finding.subject}: {finding.message}")
            advice = (finding.remedy,) if finding.remedy else finding.statements
            lines.extend(f"{'':<8} -> {each}" for each in advice)
        errors = sum(finding.level == "error" for finding in self.findings)
        warnings = sum(finding.level == "warning" for finding in self.findings)
        lines.append("")
        lines.append("ready to relay" if self.ok else "not ready: mend the errors above")
        lines[-1] += f" ({counted(errors, 'error')}, {counted(warnings, 'warning')})"
        return "\n".join(lines) + "\n"
