//! Shows a call to the client that waits for it: what is said before the answer, signs of life, the answer.

pub mod silence;
