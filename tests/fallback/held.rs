//! `fallback = "hold"`: calls that are held on a stream of the gateway's own, whose clients lose it.
