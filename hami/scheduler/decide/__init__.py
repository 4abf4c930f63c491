"""decide(snapshot, input) -> events | refusal. Pure: every `if` about devices lives here."""
