"""Where notices go. One module a kind of receiver, all behind `base.Sink`; the only code of this room that speaks HTTP out."""
