//! Group 2.
