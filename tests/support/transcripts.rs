//! The conversations that tests play: real transcripts where there are any, else the project's own examples.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Once;

#[derive(Clone, Debug)]
pub struct Transcript {
    /// The file's name without its ending.
    pub name: String,
    /// One JSON message each, byte for byte.
    pub lines: Vec<String>,
}

/// All transcripts of the input folder; says on standard output which folder that is.
pub fn transcripts() -> Vec<Transcript> {
    let folder = input_folder();
    let found = read(&folder);
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let names: Vec<&str> = found.iter().map(|transcript| transcript.name.as_str()).collect();
        // The test runner keeps what print! says of a test that passes.
        let mut out = std::io::stdout().lock();
        writeln!(out, "transcripts: {} from {}", names.join(", "), folder.display()).expect("standard output is open");
    });
    found
}

/// The project's own conversations.
pub fn examples() -> Vec<Transcript> {
    read(&examples_folder())
}

fn input_folder() -> PathBuf {
    if let Ok(given) = std::env::var("AGENT_SESSIONS_TRANSCRIPTS") {
        return PathBuf::from(given);
    }
    let beside_the_clone = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/transcripts");
    if beside_the_clone.is_dir() { beside_the_clone } else { examples_folder() }
}

fn examples_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

fn read(folder: &Path) -> Vec<Transcript> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "ndjson"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no *.ndjson in {}", folder.display());
    files.iter().map(|file| transcript(file)).collect()
}

fn transcript(file: &Path) -> Transcript {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let lines: Vec<String> = text.split_terminator('\n').map(str::to_owned).collect();
    assert!(!lines.is_empty(), "{} is empty", file.display());
    let name = file.file_stem().and_then(|stem| stem.to_str()).expect("a file name in UTF-8");
    Transcript { name: name.to_owned(), lines }
}
