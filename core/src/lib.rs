//! The rules of `agent_sessions` that need no PostgreSQL: what is hashed and how, what an argument may be,
//! what a batch element looks like, and which error a client gets. The engine calls these; nothing here calls back.

pub mod anchor;
pub mod archive;
pub mod audit;
pub mod chain;
pub mod cursor;
pub mod digest;
pub mod element;
pub mod error;
pub mod lease;
pub mod limit;
pub mod members;
pub mod merkle;
pub mod name;
pub mod timestamp;
pub mod title;
pub mod version;
pub mod word;
