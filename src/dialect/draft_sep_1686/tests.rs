//! Tables of what is read and written.
