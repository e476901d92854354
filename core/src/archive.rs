//! A session as lines of text: what `session_export` writes, and what `session_import` reads and checks.

mod check;
mod line;

pub use check::{Check, Checked};
pub use line::{Ancestor, Chunk, End, Entry, Format, Hex, Line, Session, Sum, Text, Time};
