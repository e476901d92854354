//! The version is the same everywhere, and so are those of the tools that build.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agent_sessions_tests::Database;
use serde_json::Value;

use super::{VERSION, project, text};

/// The value of the first line `key = "value"`.
fn toml_value<'a>(manifest: &'a str, key: &str) -> &'a str {
    let line = manifest.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
    line.unwrap_or_else(|| panic!("no {key}")).trim().trim_matches('"')
}

#[tokio::test(flavor = "multi_thread")]
async fn the_version_is_the_same_everywhere() {
    let db = Database::create("packages_version").await;
    let connection = db.reader().await;
    let schema: String = connection.value("select agent_sessions.schema_version()", &[]).await;
    let control = "select default_version from pg_available_extensions where name = 'agent_sessions'";
    let control: String = connection.value(control, &[]).await;
    let require = "select agent_sessions.schema_require(min => $1::text, max => $1::text)";
    connection.execute(require, &[&VERSION]).await.expect("the library is of that version, too");

    let manifests = ["Cargo.toml", "core/Cargo.toml", "tests/Cargo.toml"].map(text);
    let meta: Value = serde_json::from_str(&text("META.json")).expect("META.json");
    let dockerfile = text("Dockerfile");
    let changelog = text("CHANGELOG.md");
    let newest = changelog.lines().find_map(|line| line.strip_prefix("## [")?.split(']').next());
    let mut said: BTreeMap<&str, &str> = BTreeMap::from([
        ("schema_version()", schema.as_str()),
        ("the control file", &control),
        ("META.json", meta["version"].as_str().unwrap_or_default()),
        ("META.json, provides", meta["provides"]["agent_sessions"]["version"].as_str().unwrap_or_default()),
        ("Dockerfile", dockerfile.lines().find_map(|line| line.strip_prefix("ARG VERSION=")).unwrap_or_default()),
        ("CHANGELOG.md", newest.unwrap_or_default()),
    ]);
    for (name, manifest) in ["Cargo.toml", "core/Cargo.toml", "tests/Cargo.toml"].into_iter().zip(&manifests) {
        said.insert(name, toml_value(manifest, "version"));
    }
    said.retain(|_, version| *version != VERSION);
    assert!(said.is_empty(), "{VERSION} was expected: {said:?}");
}

/// Text files of the project, those aside that only machines write.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if ["target", ".git", "node_modules", "__pycache__", "Cargo.lock"].contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn tools_are_named_with_one_version() {
    let manifest = text("Cargo.toml");
    let pgrx = manifest.split("pgrx = { version = \"=").nth(1).and_then(|rest| rest.split('"').next());
    let pgrx = pgrx.expect("pgrx is pinned");
    let mut files = Vec::new();
    sources(&project(), &mut files);
    let naming: Vec<String> = files
        .iter()
        .filter(|file| std::fs::read_to_string(file).is_ok_and(|text| text.contains(pgrx)))
        .map(|file| file.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    assert_eq!(naming, ["Cargo.toml"], "files that name pgrx {pgrx}");

    let rust = toml_value(&manifest, "rust-version");
    for manifest in ["core/Cargo.toml", "tests/Cargo.toml"] {
        assert_eq!(toml_value(&text(manifest), "rust-version"), rust, "{manifest}");
    }
    assert!(text("Dockerfile").contains(&format!("FROM rust:{rust}-")), "Dockerfile: another Rust than {rust}");
    assert!(text("README.md").contains(&format!("Rust {rust}")), "README.md: another Rust than {rust}");
    assert!(text("scripts/setup.sh").contains(&format!("Rust {rust}")), "setup.sh: another Rust than {rust}");
}
