//! Files of a test's own.

use std::path::PathBuf;

use crate::Database;

/// A file or folder of a test's own, removed with it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(db: &Database, name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("{}_{name}", db.name));
        let scratch = Scratch(path);
        scratch.remove();
        scratch
    }

    pub fn path(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }

    fn remove(&self) {
        if self.0.is_dir() {
            std::fs::remove_dir_all(&self.0).expect("the folder can be removed");
        } else if self.0.exists() {
            std::fs::remove_file(&self.0).expect("the file can be removed");
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.remove();
    }
}
