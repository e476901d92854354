//! Backups of every kind bring back everything: dumps in all formats and parts, copies of the files, and a point in time.

pub mod world;
